"""One attempt at a model call: its slot and reservation, its timeouts, the streaming of its reply, and its usage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass, field
from typing import NoReturn

from rl_conductor.calls.budget import Amount, Reservation
from rl_conductor.calls.context import RunContext
from rl_conductor.calls.failures import is_refusal
from rl_conductor.calls.nested import NestedRecords
from rl_conductor.calls.pause import PauseSignal
from rl_conductor.calls.pieces import PieceMerger
from rl_conductor.calls.scope import CallScope, current_scope
from rl_conductor.calls.timer import CallTimer
from rl_conductor.errors import (
    BadResponseError,
    ConductorError,
    ContextLengthError,
    LimitError,
    ModelError,
    ModelTimeoutError,
    ScriptError,
)
from rl_conductor.models.base import Model, checked, priced
from rl_conductor.models.reasoning_reader import ReasoningMemory, ReasoningReader
from rl_conductor.models.redaction import find_secrets, redact_secrets
from rl_conductor.models.reply_chars import ReplySize, max_reply_chars
from rl_conductor.models.reply_format import check_format
from rl_conductor.trace.trace import Charge
from rl_conductor.types import Completion, Delta, Request, Usage, total
from rl_conductor.workflow.limits import min_input_tokens, upper_bound


@dataclass(kw_only=True, slots=True)
class Attempt:
    """Sends one request once. Afterwards the fields without parameters say how far it came, however it ended."""

    run: RunContext
    model: Model
    request: Request
    slot: AbstractAsyncContextManager[object] | None
    on_text: Callable[[str], None] | None
    reasoning: ReasoningMemory | None
    deadline: float | None
    on_start: Callable[[], object] | None
    checks_format: bool
    reached_model: bool = field(default=False, init=False)
    """Whether it got its slot and reservation, so that the model was called."""
    usage: Usage | None = field(default=None, init=False)
    """As reported by the vendor; `None` when the call failed."""
    nested_usage: list[Usage] = field(default_factory=list, init=False)
    """Usage of the calls and runs inside of this call, when the model is a conductor or an agent."""
    nested: NestedRecords = field(init=False)
    """Records of these calls and runs."""
    received_text: bool = field(default=False, init=False)
    """Whether the model sent any part of a reply."""
    reservation: Reservation | None = field(default=None, init=False)
    """What was reserved for the call, and in the end what it was charged; `None` if nothing depends on that."""
    has_streamed: bool = field(default=False, init=False)
    """Whether a piece of the answer was passed on to `on_text`."""

    def __post_init__(self) -> None:
        self.nested = NestedRecords(self.run.began)

    async def complete(self) -> Completion:
        """Calls the model and returns its reply.

        One timer covers the deadline, which includes the wait for a slot and for the budget, and the request's own
        timeout, which begins with the call. A model that turns its cancellation into an error or a reply is cancelled
        all the same.

        Raises:
            ContextLengthError: before the call, if the request exceeds the model's context length by any estimate.
        """
        if self.model.capabilities.context is not None:
            _require_room(self.model, self.request, self.model.capabilities.context)
        remaining = self.run.remaining(self.deadline)
        if remaining is not None and remaining <= 0:
            raise self._deadline_error()
        deadline = None if remaining is None else asyncio.get_running_loop().time() + remaining
        timer = CallTimer(deadline)
        try:
            with timer:
                is_bounded = self.slot is not None or self.run.budget.counts_calls
                if not is_bounded or self.model.capabilities.delegates:  # whose own calls take slots and reservations
                    return await self._call(timer, None)
                async with self.slot or nullcontext(), self._reservation() as reserved:
                    return await self._call(timer, reserved)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # also if a listener cancelled it before the call
                raise
            message = f"{self.model.name} raised CancelledError, although nobody cancelled the call"
            raise ModelError(message, model=self.model.name) from error
        except (TimeoutError, ModelError) as error:
            if timer.expired:
                raise (self._deadline_error() if timer.end == deadline else self._timeout_error()) from None
            if isinstance(error, TimeoutError):  # raised by the model itself
                message = f"{self.model.name} gave no answer in time: {error}"
                raise ModelTimeoutError(message, model=self.model.name) from None
            raise

    def _reservation(self) -> AbstractAsyncContextManager[Reservation | None]:
        """Returns the reservation to enter for the call; nothing is reserved where no limit depends on it."""
        if not self.run.budget.counts_calls:
            return nullcontext()
        return self.run.budget.reserve(self.model.name, upper_bound(self.request, self.model.price))

    async def _call(self, timer: CallTimer, reservation: Reservation | None) -> Completion:
        """Calls the model within the request's own timeout, and commits the usage."""
        if self.on_start is not None:
            self.on_start()
        self.reached_model = True
        self.reservation = reservation
        if reservation is not None:
            reservation.begin()
        if self.request.timeout is not None:
            timer.limit(self.request.timeout)
        run, reader, outer = self.run, self._reader(), current_scope.get()
        allowed = run.limits.reply_chars if outer.budget is None else min(run.limits.reply_chars, max_reply_chars.get())
        reply_chars = max_reply_chars.set(allowed)
        scope = current_scope.set(
            CallScope(
                run.budget,
                reservation,
                self.nested_usage,
                self.nested,
                self.slot,
                guardrails=run.all_guardrails,
                policies=run.policies,
            )
        )
        try:
            if self.on_text is not None:
                completion = await self._stream(self.on_text, reader)
            else:
                try:
                    completion = await self.model.complete(self.request)
                except Exception as error:
                    self._raise_translated(error)
        except (ModelError, PauseSignal) as end:
            self._settle(end, reservation)
            raise
        finally:
            current_scope.reset(scope)
            max_reply_chars.reset(reply_chars)
        if reader is not None:
            completion = reader.split(completion, learn=self.request.response_format is None)
        usage = self._commit(completion.usage, reservation)
        if usage is not completion.usage:
            completion = completion.model_copy(update={"usage": usage})
        completion = checked(_limit_tool_calls(completion, self.request), self.request)
        return check_format(completion, self.request) if self.checks_format else completion

    def _commit(self, usage: Usage, reservation: Reservation | None) -> Usage:
        """Charges the usage of a reply, and returns it with a price."""
        is_own = not usage.calls  # a model of the user's own, which reports at most its own tokens
        if is_own:
            usage = priced(usage, self.model.price)
        if reservation is not None and reservation.is_released and is_own:
            reservation.charge_besides(usage)
        elif reservation is not None:
            reservation.commit(usage)
        if self.nested_usage and (is_own or not usage.total_tokens) and not self.model.capabilities.delegates:
            usage = total([usage, *self.nested_usage])
        self.usage = usage
        return usage

    def _settle(self, end: ModelError | PauseSignal, reservation: Reservation | None) -> None:
        """Charges a call that ended without a reply with what is known about its usage."""
        if isinstance(end, PauseSignal):
            self.usage = total([end.usage, *self.nested_usage])
            if reservation is not None:
                reservation.release()  # the calls that the agent made have reservations of their own
        elif end.usage is not None:
            self._commit(end.usage, reservation)
        elif reservation is not None and self._was_refused(end):
            reservation.refund()

    def _timeout_error(self) -> ModelTimeoutError:
        message = f"{self.model.name} gave no answer within {self.request.timeout:g} s"
        return ModelTimeoutError(message, model=self.model.name)

    def _deadline_error(self) -> LimitError:
        (_, seconds), elapsed = self.run.budget.shared_deadline() or (0.0, 0.0), self.run.elapsed()
        reason = f"limits.seconds={seconds:g} was over"
        if self.deadline is not None and self.deadline < seconds:
            reason = f"the first {self.deadline:.3g} s of limits.seconds={seconds:g} were over"
        return LimitError(
            f"{reason} before {self.model.name} had answered", limit="seconds", needed=elapsed, remaining=0.0
        )

    # --------------------------------------------------------------------------------- the reply

    def _reader(self) -> ReasoningReader | None:
        if self.reasoning is None:
            return None
        declared = self.model.capabilities.reasoning_start
        return ReasoningReader(self.reasoning, declared, self.model.name, streamed=self.on_text is not None)

    async def _stream(self, on_text: Callable[[str], None], reader: ReasoningReader | None) -> Completion:
        """Passes the text of the answer on as it comes. Errors of the model are translated, those of `on_text` not."""
        completion: Completion | None = None
        size, pieces = ReplySize(self.model.name), PieceMerger(on_text)
        async with aclosing(self._open_stream()) as deltas:
            while True:
                try:
                    delta = await anext(deltas)
                except StopAsyncIteration:
                    break
                except Exception as error:
                    self._raise_translated(error)
                self.received_text = self.received_text or bool(delta.text or delta.reasoning)
                size.add(delta.text, delta.reasoning)
                completion = delta.completion or completion
                if text := reader.add(delta) if reader else delta.text:
                    self.has_streamed = True
                    pieces.add(text)
        if completion is None:
            reason = "the stream ended before the reply was complete"
            raise BadResponseError(f"{self.model.name}: {reason}", model=self.model.name)
        if reader is not None and (text := reader.rest(completion)):
            self.has_streamed = True
            pieces.add(text)
        pieces.end()
        return completion

    def _open_stream(self) -> AsyncGenerator[Delta, None]:
        try:
            return self.model.stream(self.request)
        except Exception as error:  # of a method that is no generator itself
            self._raise_translated(error)

    def _raise_translated(self, error: Exception) -> NoReturn:
        """Raises `ModelError` for an exception of a user's own model; our errors and timeouts stay as they are."""
        if isinstance(error, ConductorError | TimeoutError | ScriptError):
            raise error
        text = redact_secrets(str(error), find_secrets(self.model))
        message = f"{self.model.name} raised {type(error).__name__}: {text}"
        # A traceback would quote the key as well.
        raise ModelError(message, model=self.model.name) from (error if text == str(error) else None)

    # --------------------------------------------------------------------------------- its usage

    def usage_after(self, failure: ConductorError | None, *, was_sent: bool) -> Usage:
        """The usage of the attempt; when the vendor reported none but may bill it, it counts as unpriced."""
        if self.usage is not None:
            return self.usage
        if self.nested_usage:
            return total(self.nested_usage)
        is_free = not was_sent or self._was_refused(failure) or self._costs_nothing()
        return Usage(calls=int(was_sent), unpriced_calls=int(not is_free))

    def charge_beyond(self, usage: Usage) -> Charge | None:
        """Returns what limits count for the attempt; `None` if that is its `usage`."""
        if self.reservation is None or self.reservation.is_released:
            return None
        used = self.reservation.used
        return None if used == Amount.of(usage) else Charge(usd=used.usd, tokens=used.tokens)

    def _was_refused(self, failure: Exception | None) -> bool:
        return is_refusal(failure) and not self.received_text

    def _costs_nothing(self) -> bool:
        price = self.model.price
        return price is not None and price.is_free and not self.model.capabilities.delegates


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
