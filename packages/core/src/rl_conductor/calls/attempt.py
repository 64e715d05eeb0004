"""One attempt at a model call: its slot and reservation, its timeouts, the streaming of its reply, and its usage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from dataclasses import dataclass, field

from rl_conductor.calls.budget import Reservation, current_budget, current_reservation, usage_sink
from rl_conductor.calls.clock import RunClock
from rl_conductor.calls.record import is_refusal
from rl_conductor.errors import (
    BadResponseError,
    ConductorError,
    LimitError,
    ModelError,
    ModelTimeoutError,
    ScriptError,
)
from rl_conductor.models.base import Model, checked
from rl_conductor.models.redaction import find_secrets, redact_secrets
from rl_conductor.models.reply import ReasoningMemory, ReplyReader
from rl_conductor.types import Completion, Delta, Request, Usage, total
from rl_conductor.workflow.limits import upper_bound


@dataclass
class Attempt:
    """Sends one request once. After `run`, the other fields say how far it came, however it ended."""

    clock: RunClock
    model: Model
    request: Request
    slot: AbstractAsyncContextManager[object]
    on_start: Callable[[], None]
    on_text: Callable[[str], None] | None
    memory: ReasoningMemory | None
    """`None` leaves reasoning in the text."""
    deadline: float | None = None
    """Seconds since the run began after which the call is given up."""
    reached_model: bool = field(default=False, init=False)
    """Whether it got its slot and reservation, so that the model was called."""
    usage: Usage | None = field(default=None, init=False)
    """As reported by the vendor; `None` when the call failed."""
    nested_usage: list[Usage] = field(default_factory=list, init=False)
    """Usage of the runs inside of this call, when the model is a conductor."""
    received_text: bool = field(default=False, init=False)
    """Whether the model sent any part of a reply."""
    has_streamed: bool = field(default=False, init=False)
    """Whether a piece of the answer was passed on to `on_text`."""

    async def run(self) -> Completion:
        """Calls the model and returns its reply.

        A model that turns its cancellation into an error or a reply is cancelled all the same.
        """
        task = asyncio.current_task()
        cancellations = task.cancelling() if task else 0  # a task that is being cancelled may call models to clean up
        try:
            return await self._before_deadline()
        finally:
            if task is not None and task.cancelling() > cancellations:
                raise asyncio.CancelledError

    async def _before_deadline(self) -> Completion:
        """Applies the deadline, which includes the time spent waiting for a slot and for the budget."""
        remaining = self.clock.remaining(self.deadline)
        if remaining is None:
            return await self._in_slot()
        if remaining <= 0:
            raise self._deadline_error()
        timeout = asyncio.timeout(remaining)
        try:
            async with timeout:
                return await self._in_slot()
        except (TimeoutError, ModelError):
            if timeout.expired():
                raise self._deadline_error() from None
            raise

    def _deadline_error(self) -> LimitError:
        (_, seconds), elapsed = self.clock.deadline() or (0.0, 0.0), self.clock.elapsed()
        reason = f"limits.seconds={seconds:g} was over"
        if self.deadline is not None and self.deadline < seconds:
            reason = f"the first {self.deadline:.3g} s of limits.seconds={seconds:g} were over"
        return LimitError(f"{reason} before {self.model.name} had answered", limit="seconds", needed=elapsed, left=0.0)

    async def _in_slot(self) -> Completion:
        """Takes the slot and reserves the cost; a conductor takes neither, because its own calls do."""
        if self.model.capabilities.delegates:
            return await self._call(None)
        async with self.slot:
            reservation = self.clock.budget.reserve(self.model.name, upper_bound(self.request, self.model.price))
            async with reservation:
                return await self._call(reservation)

    async def _call(self, reservation: Reservation | None) -> Completion:
        """Calls the model within the request's own timeout, and commits the usage."""
        self.on_start()
        self.reached_model = True
        if reservation is not None:
            reservation.begin()
        timeout = asyncio.timeout(self.request.timeout)
        try:
            async with timeout:
                with self._context(reservation):
                    completion = await self._reply()
        except (TimeoutError, ModelError) as error:
            if reservation is not None and self._was_refused(error):
                reservation.refund()
            if timeout.expired():
                raise self._timeout_error(f"within {self.request.timeout:g} s") from None
            if isinstance(error, TimeoutError):  # raised by the model itself
                raise self._timeout_error(f"in time: {error}") from None
            raise
        self.usage = completion.usage
        if reservation is not None:
            reservation.commit(completion.usage)
        return checked(_without_unknown_tools(completion, self.request))

    @contextmanager
    def _context(self, reservation: Reservation | None) -> Iterator[None]:
        """Tells runs inside of this call which budget and reservation they are part of."""
        budget_token = current_budget.set(self.clock.budget)
        reservation_token, sink_token = current_reservation.set(reservation), usage_sink.set(self.nested_usage)
        try:
            yield
        finally:
            current_budget.reset(budget_token)
            current_reservation.reset(reservation_token)
            usage_sink.reset(sink_token)

    def _timeout_error(self, when: str) -> ModelTimeoutError:
        return ModelTimeoutError(f"{self.model.name} gave no answer {when}", model=self.model.name)

    # --------------------------------------------------------------------------------- the reply

    async def _reply(self) -> Completion:
        reader = self._reader()
        if self.on_text is None:
            with self._translated_errors():
                completion: Completion | None = await self.model.complete(self.request)
        else:
            completion = await self._stream(self.on_text, reader)
        if completion is None:
            reason = "the stream ended before the reply was complete"
            raise BadResponseError(f"{self.model.name}: {reason}", model=self.model.name)
        return reader.split(completion, learn=self.request.response_format is None) if reader else completion

    def _reader(self) -> ReplyReader | None:
        if self.memory is None:
            return None
        declared = self.model.capabilities.reasoning_start
        return ReplyReader(self.memory, declared, self.model.name, streamed=self.on_text is not None)

    async def _stream(self, on_text: Callable[[str], None], reader: ReplyReader | None) -> Completion | None:
        completion = None

        def pass_on(answer: str) -> None:
            if answer:
                self.has_streamed = True
                on_text(answer)

        async with aclosing(self._deltas()) as deltas:
            async for delta in deltas:
                self.received_text = self.received_text or bool(delta.text or delta.reasoning)
                pass_on(reader.add(delta) if reader else delta.text)
                completion = delta.completion or completion
        if completion is not None and reader is not None:
            pass_on(reader.rest(completion))
        return completion

    async def _deltas(self) -> AsyncGenerator[Delta, None]:
        with self._translated_errors():
            async with aclosing(self.model.stream(self.request)) as deltas:
                async for delta in deltas:
                    yield delta

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raises `ModelError` for any exception of a user's own model, but not for those of `on_text`."""
        try:
            yield
        except (ConductorError, TimeoutError, ScriptError):
            raise
        except Exception as error:
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

    def _was_refused(self, failure: Exception | None) -> bool:
        return is_refusal(failure) and not self.received_text

    def _costs_nothing(self) -> bool:
        price = self.model.price
        is_free = price is not None and not (price.input or price.output or price.per_call)
        return is_free and not self.model.capabilities.delegates


def _without_unknown_tools(completion: Completion, request: Request) -> Completion:
    """Removes calls of tools that the request did not offer: nobody could answer them."""
    names = {tool.name for tool in request.tools}
    calls = tuple(call for call in completion.message.tool_calls if call.name in names)
    if len(calls) == len(completion.message.tool_calls):
        return completion
    message = completion.message.model_copy(update={"tool_calls": calls})
    finish = completion.finish_reason if calls else "stop"
    return completion.model_copy(update={"message": message, "finish_reason": finish})
