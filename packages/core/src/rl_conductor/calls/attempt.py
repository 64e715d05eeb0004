"""One attempt at a model call: its slot and reservation, its timeouts, the streaming of its reply, and its usage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import TYPE_CHECKING

from rl_conductor.calls.budget import Amount, Reservation
from rl_conductor.calls.failures import is_rejection
from rl_conductor.calls.nested_records import NestedRecords
from rl_conductor.calls.nested_runs import NestedRuns
from rl_conductor.calls.pause import PauseSignal
from rl_conductor.calls.pieces import ReplyPieces
from rl_conductor.calls.scope import CallScope, current_scope
from rl_conductor.calls.timer import CallTimer
from rl_conductor.errors import (
    BadResponseError,
    ConductorError,
    ContextLengthError,
    LimitError,
    ModelError,
    ModelTimeoutError,
)
from rl_conductor.models.base import Model
from rl_conductor.models.foreign_errors import FOREIGN_ERRORS, raise_translated
from rl_conductor.models.prices import priced
from rl_conductor.models.replies.checks import check_format, checked
from rl_conductor.models.replies.reasoning_reader import ReasoningReader
from rl_conductor.models.replies.size import ReplySize, max_reply_chars
from rl_conductor.trace.trace import Charge
from rl_conductor.types import Completion, Delta, Request, Usage, total
from rl_conductor.workflow.request_tokens import min_input_tokens, upper_bound

if TYPE_CHECKING:
    from rl_conductor.calls.model_call import ModelCall


class Attempt:
    """Sends the request of a call once. Afterwards its attributes say how far it came, however it ended."""

    def __init__(self, call: ModelCall) -> None:
        self.reached_model = False
        """Whether it got its slot and reservation, so that the model was called."""
        self.usage: Usage | None = None
        """As reported by the vendor; `None` when the call failed."""
        self.has_streamed = False
        """Whether a piece of the answer was passed on to `on_text`."""
        self.nested = NestedRecords(call.run.began)
        """Records of the calls and runs inside of this call, when the model is a conductor or an agent."""
        self._nested_usage: list[Usage] = []
        """Usage of these calls and runs."""
        self._beyond_usage: list[Amount] = []
        """Charges for them in addition to their usage."""
        self._runs = NestedRuns()
        self._reservation: Reservation | None = None
        """The reservation for the call, and in the end its charge; `None` if nothing depends on that."""
        self._has_begun = False
        """Whether the model sent any part of a reply, such as a piece of a tool call."""
        self._call = call
        self._run, self._model, self._request = call.run, call.model, call.request

    async def complete(self) -> Completion:
        """Calls the model and returns its reply.

        One timer covers the deadline, which includes the wait for a slot and for the budget, and the request's own
        timeout, which begins with the call. A model that turns its cancellation into an error or a reply is cancelled
        all the same.

        Raises:
            ContextLengthError: before the call, if the request exceeds the model's context length by any estimate.
        """
        if self._model.capabilities.context is not None:
            _require_room(self._model, self._request, self._model.capabilities.context)
        remaining = self._run.remaining(self._call.deadline)
        if remaining is not None and remaining <= 0:
            raise self._deadline_error()
        deadline = None if remaining is None else asyncio.get_running_loop().time() + remaining
        timer = CallTimer(deadline)
        try:
            with timer:
                is_bounded = self._call.slot is not None or self._run.budget.counts_calls
                if not is_bounded or self._model.capabilities.delegates:  # whose own calls take slots and reservations
                    return await self._send(timer, None)
                async with self._call.slot or nullcontext(), self._reserve() as reserved:
                    return await self._send(timer, reserved)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # also if a listener cancelled it before the call
                raise
            message = f"{self._model.name} raised CancelledError, although nobody cancelled the call"
            raise ModelError(message, model=self._model.name) from error
        except (TimeoutError, ModelError):
            if timer.expired:
                raise (self._deadline_error() if timer.end == deadline else self._timeout_error()) from None
            raise

    def _reserve(self) -> AbstractAsyncContextManager[Reservation | None]:
        """Returns the reservation to enter for the call; nothing is reserved where no limit depends on it."""
        if not self._run.budget.counts_calls:
            return nullcontext()
        bound = upper_bound(self._request, self._model.price)
        return self._run.budget.reserve(self._model.name, bound, self._call.follow_up)

    async def _send(self, timer: CallTimer, reservation: Reservation | None) -> Completion:
        """Calls the model within the request's own timeout, and commits the usage."""
        if self._call.on_attempt is not None:
            self._call.on_attempt(self._call.attempts)
        self.reached_model = True
        self._reservation = reservation
        if reservation is not None:
            reservation.begin()
        if self._request.timeout is not None:
            timer.limit(self._request.timeout)
        run, reader, outer = self._run, self._reader(), current_scope.get()
        allowed = run.limits.reply_chars if outer.budget is None else min(run.limits.reply_chars, max_reply_chars.get())
        reply_chars = max_reply_chars.set(allowed)
        scope = current_scope.set(
            CallScope(
                run.budget,
                reservation,
                self._nested_usage,
                self._beyond_usage,
                self.nested,
                self._runs,
                self._call.slot,
                guardrails=run.all_guardrails,
                policies=run.policies,
            )
        )
        try:
            if self._call.on_text is not None:
                completion = await self._stream(self._call.on_text, reader)
            else:
                try:
                    completion = await self._model.complete(self._request)
                except FOREIGN_ERRORS as error:
                    raise_translated(error, self._model)
        except (ModelError, PauseSignal) as end:
            self._settle(end)
            raise
        except asyncio.CancelledError:
            await self._end_runs()
            raise
        finally:
            current_scope.reset(scope)
            max_reply_chars.reset(reply_chars)
        if reader is not None:
            completion = reader.split(completion, learn=self._request.response_format is None)
        usage = self._commit(completion.usage)
        if usage is not completion.usage:
            completion = completion.model_copy(update={"usage": usage})
        completion = checked(_limit_tool_calls(completion, self._request), self._request)
        return check_format(completion, self._request) if self._call.checks_format else completion

    def _commit(self, usage: Usage) -> Usage:
        """Charges the usage of a reply, and returns it with a price.

        The calls of runs inside of this call count instead of it: what it used itself is added to them.
        """
        reservation = self._reservation
        is_own = not usage.calls  # a model of the user's own, which reports at most its own tokens
        if is_own:
            usage = priced(usage, self._model.price)
        if reservation is not None and reservation.is_released and is_own:
            reservation.charge_besides(usage)
        elif reservation is not None:
            reservation.commit(usage)
        if self._nested_usage and (is_own or not usage.total_tokens) and not self._model.capabilities.delegates:
            usage = total([usage.model_copy(update={"calls": 0}), *self._nested_usage])
        self.usage = usage
        return usage

    def _settle(self, end: ModelError | PauseSignal) -> None:
        """Charges a call that ended without a reply by its usage, as far as that is known."""
        reservation = self._reservation
        if isinstance(end, PauseSignal):
            self.usage = total([end.usage, *self._nested_usage])
            if reservation is not None:
                reservation.release()  # the calls that the agent made have reservations of their own
        elif end.usage is not None:
            self._commit(end.usage)
        elif reservation is not None and self._was_rejected(end):
            reservation.refund()

    async def _end_runs(self) -> None:
        """Ends runs that a thread of the call continues; those that don't end are charged all that they reserved."""
        try:
            await self._runs.cancel()
        finally:
            for amount in self._runs.close():
                self._nested_usage.append(Usage(calls=amount.calls, unpriced_calls=amount.calls))
                self._beyond_usage.append(Amount(amount.usd, amount.tokens))

    def _timeout_error(self) -> ModelTimeoutError:
        message = f"{self._model.name} gave no answer within {self._request.timeout:g} s"
        return ModelTimeoutError(message, model=self._model.name)

    def _deadline_error(self) -> LimitError:
        deadline = self._run.budget.shared_deadline()
        name, seconds = (deadline.name, deadline.seconds) if deadline else ("limits.seconds", 0.0)
        reason = f"{name}={seconds:g} was over"
        if self._call.deadline is not None and self._call.deadline < seconds:
            reason = f"the first {self._call.deadline:.3g} s of {name}={seconds:g} were over"
        message = f"{reason} before {self._model.name} had answered"
        return LimitError(message, limit="seconds", needed=self._run.elapsed(), remaining=0.0)

    # --------------------------------------------------------------------------------- the reply

    def _reader(self) -> ReasoningReader | None:
        if self._call.reasoning is None:
            return None
        declared, is_streamed = self._model.capabilities.reasoning_start, self._call.on_text is not None
        return ReasoningReader(self._call.reasoning, declared, self._model.name, streamed=is_streamed)

    async def _stream(self, on_text: Callable[[str], None], reader: ReasoningReader | None) -> Completion:
        """Passes the reply on as it comes. Errors of the model are translated, those of `on_text` not."""
        completion: Completion | None = None
        size, pieces = ReplySize(self._model.name), ReplyPieces(on_text, self._call.on_reasoning)

        def pass_on(text: str, reasoning: str = "") -> None:
            if text and not self.has_streamed:
                self.has_streamed = True
                reasoning += reader.reasoning if reader else ""  # that in the text is complete now
            pieces.add(text, reasoning)

        async with aclosing(self._open_stream()) as deltas:
            while True:
                try:
                    delta = await anext(deltas)
                except StopAsyncIteration:
                    break
                except FOREIGN_ERRORS as error:
                    raise_translated(error, self._model)
                self._has_begun = True
                size.add(delta.text, delta.reasoning)
                completion = delta.completion or completion
                pass_on(reader.add(delta) if reader else delta.text, delta.reasoning)
        if completion is None:
            reason = "the stream ended before the reply was complete"
            raise BadResponseError(f"{self._model.name}: {reason}", model=self._model.name)
        if reader is not None:
            pass_on(reader.rest(completion))
        pieces.end()
        return completion

    def _open_stream(self) -> AsyncGenerator[Delta, None]:
        try:
            return self._model.stream(self._request)
        except FOREIGN_ERRORS as error:  # of a method that is no generator itself
            raise_translated(error, self._model)

    # --------------------------------------------------------------------------------- its usage

    def usage_after(self, failure: ConductorError | None, *, was_sent: bool) -> Usage:
        """The usage of the attempt; when the vendor reported none but may bill it, it counts as unpriced."""
        if self.usage is not None:
            return self.usage
        if self._nested_usage or self._model.capabilities.delegates:
            return total(self._nested_usage)
        is_free = not was_sent or self._was_rejected(failure) or self._costs_nothing()
        return Usage(calls=int(was_sent), unpriced_calls=int(not is_free))

    def charge_beyond(self, usage: Usage) -> Charge | None:
        """Returns the charge for the attempt and the calls inside of it; `None` if that equals its `usage`."""
        own = None if self._reservation is None or self._reservation.is_released else self._reservation
        if own is None and not self._beyond_usage:
            return None
        used = sum(self._beyond_usage, Amount.of(usage) if own is None else own.used)
        return None if used == Amount.of(usage) else Charge(usd=used.usd, tokens=used.tokens)

    def _was_rejected(self, failure: Exception | None) -> bool:
        return is_rejection(failure) and not self._has_begun

    def _costs_nothing(self) -> bool:
        price = self._model.price
        return price is not None and price.is_free


def _require_room(model: Model, request: Request, context: int) -> None:
    if (tokens := min_input_tokens(request)) >= context:
        message = f"{model.name}: the request has {tokens:,} tokens or more, but the model's context is {context:,}"
        raise ContextLengthError(message, model=model.name)


def _limit_tool_calls(completion: Completion, request: Request) -> Completion:
    """Keeps the tool calls that the caller can answer: none without tools, and one if they may not be parallel.

    A caller with tools answers a call of one that it did not offer with an error, which the model can read.
    """
    calls = completion.message.tool_calls
    allowed = 0 if not request.tools else 1 if not request.parallel_tool_calls else len(calls)
    if len(calls) <= allowed:
        return completion
    message = completion.message.model_copy(update={"tool_calls": calls[:allowed]})
    update = {"message": message, "dropped_calls": len(calls) - allowed}
    return completion.model_copy(update=update if allowed else update | {"finish_reason": "stop"})
