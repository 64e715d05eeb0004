"""One call to a model: reserved, timed, retried and recorded. Planner and executor make theirs here, and only here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rl_conductor.calls.budget import Amount, Ledger, Reservation, enclosing, holding, reports
from rl_conductor.errors import (
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    ConductorError,
    ContextLengthError,
    LimitError,
    ModelError,
    ModelTimeoutError,
    RateLimitError,
    ScriptError,
)
from rl_conductor.models.base import LONGEST_ERROR, Model, checked
from rl_conductor.models.redaction import secrets_in, without_secrets
from rl_conductor.models.reply import ReasoningMemory, ReplyReader
from rl_conductor.trace.trace import Call, CallOutcome, fingerprint
from rl_conductor.types import Completion, Delta, Request, Usage, total
from rl_conductor.workflow.limits import DEFAULT_OUTPUT_TOKENS, upper_bound

if TYPE_CHECKING:
    from tenacity import RetryCallState

log = logging.getLogger("rl_conductor.run")

LONGEST_WAIT = 60.0
"""Seconds: a vendor that asks for a longer pause is given up instead."""
FIRST_WAIT, MOST_WAIT = 0.5, 8.0
LEAST_TIMEOUT = 0.001
"""Seconds: the time left may be over already, but limits are above 0."""

REFUSALS = (AuthenticationError, BadRequestError, ContextLengthError, RateLimitError)
REFUSAL_STATUSES = (400, 401, 403, 404, 413, 422, 429)
"""Calls that end so are refused before anything is written, so that nothing is charged for them."""


@dataclass
class Caller:
    """How one run calls models: on one ledger, one clock and one deadline."""

    ledger: Ledger
    retries: int = 2
    """Most repetitions of a call that failed for a reason that may pass."""
    keep_prompts: bool = True
    """Whether requests are kept in the trace, or only their fingerprints."""
    began: float = field(default_factory=time.monotonic)

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    def carry_on(self, calls: Iterable[Call]) -> None:
        """Count calls that were made for this run before; its clock goes on from where they ended."""
        for call in calls:
            self.ledger.charge(Amount.of(call.usage))
            self.began = min(self.began, time.monotonic() - call.started - call.seconds)

    def remaining(self) -> float | None:
        """Seconds until the run's deadline; `None` without one."""
        deadline = self.deadline()
        return None if deadline is None else deadline[0] - time.monotonic()

    def deadline(self) -> tuple[float, float] | None:
        """The run's own deadline, or an earlier one that it shares, and the `limits.seconds` behind it."""
        seconds, shared = self.ledger.limits.seconds, self.ledger.shared_deadline()
        if seconds is None:
            return shared
        own = (self.began + seconds, seconds)
        return own if shared is None else min(own, shared)

    def deadline_after(self, share: float) -> float | None:
        """When this share of the time that is left is over, in seconds since the run began; `None` without a limit."""
        remaining = self.remaining()
        return None if remaining is None else self.elapsed() + share * max(remaining, 0.0)

    async def ask(
        self,
        model: Model,
        request: Request,
        *,
        calls: list[Call],
        worker: str | None = None,
        slot: AbstractAsyncContextManager[object] | None = None,
        on_attempt: Callable[[int], None] = lambda _: None,
        on_text: Callable[[str], None] | None = None,
        reasoning: ReasoningMemory | None = None,
        raw_text: bool = False,
        deadline: float | None = None,
    ) -> Completion:
        """The reply of `model`, after as many attempts as it takes; each that was made is appended to `calls`.

        Reasoning in the text becomes a `ReasoningPart`, so that the text is the answer alone.

        Args:
            model: who is asked.
            request: what it is asked.
            calls: where the attempts are recorded.
            worker: on whose account, for the record.
            slot: held during each attempt, but not while waiting for the next.
            on_attempt: told the number of each attempt as it begins.
            on_text: the answer is streamed into it; once a piece was passed on, a failure is final, since what was
                said can't be taken back.
            reasoning: where the model's replies were seen to begin; this reply is added to it.
            raw_text: leave reasoning in the text.
            deadline: when the call is given up, in seconds since the run began; else at the deadline of the run.

        Raises:
            ModelError: the last attempt's failure.
            LimitError: a limit left no room for the call.
        """
        request = self._bounded(model, request)
        memory = None if raw_text else reasoning or ReasoningMemory()
        attempt = _Attempts(
            self, model, request, calls, worker, slot or nullcontext(), on_attempt, on_text, memory, deadline
        )
        try:
            return await attempt.make()
        except ModelError as error:
            if not attempt.may_retry(error):
                raise
            return await attempt.repeat(error)

    def _bounded(self, model: Model, request: Request) -> Request:
        """`request` with a bound on its output where spending is limited: what is sent is what is reserved.

        A conductor is told the time that is left here, so that its planning takes its share of that and no more.
        """
        if model.capabilities.delegates and (remaining := self.remaining()) is not None:
            own = remaining if request.timeout is None else request.timeout
            request = request.model_copy(update={"timeout": max(min(own, remaining), LEAST_TIMEOUT)})
        bound = request.sampling.max_tokens is not None or model.capabilities.delegates
        if bound or not self.ledger.counts_tokens:
            return request
        sampling = request.sampling.model_copy(update={"max_tokens": DEFAULT_OUTPUT_TOKENS})
        return request.model_copy(update={"sampling": sampling})


@dataclass
class _Attempts:
    """The attempts at one call."""

    caller: Caller
    model: Model
    request: Request
    calls: list[Call]
    worker: str | None
    slot: AbstractAsyncContextManager[object]
    on_attempt: Callable[[int], None]
    on_text: Callable[[str], None] | None
    memory: ReasoningMemory | None
    """`None` leaves reasoning in the text."""
    deadline: float | None = None
    """When this call is given up though the run may go on, in seconds since the run began."""
    number: int = 0
    """Of the attempt at hand, from 1."""
    begun: bool = False
    """Whether the attempt at hand came as far as the model."""
    usage: Usage | None = None
    """What the attempt at hand used, as far as the vendor told."""
    inside: list[Usage] = field(default_factory=list)
    """What the runs that the attempt at hand set off have used: those of a conductor in the pool."""
    received: bool = False
    """Whether the attempt at hand received a part of a reply."""
    spoken: bool = False
    """Whether a part of the answer was passed on."""

    async def repeat(self, first: ModelError) -> Completion:
        """Wait and try again until it works, the retries are used up, or waiting is pointless."""
        # Imported here because only a failed call needs it: it is a third of this package's import time.
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter  # noqa: PLC0415

        known: list[ModelError] = [first]

        async def attempt() -> Completion:
            if known:  # the first attempt was made outside: tenacity costs more than the rest of a good call
                raise known.pop()
            return await self.make()

        retrying = AsyncRetrying(
            stop=stop_after_attempt(1 + self.caller.retries),
            retry=retry_if_exception(lambda error: isinstance(error, ModelError) and self.may_retry(error)),
            wait=self._not_beyond_the_deadline(wait_exponential_jitter(initial=FIRST_WAIT, max=MOST_WAIT)),
            reraise=True,
        )
        return await retrying(attempt)

    def _not_beyond_the_deadline(self, backoff: Callable[[RetryCallState], float]) -> Callable[[RetryCallState], float]:
        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.retry_after if isinstance(error, ModelError) else None
            remaining = self._remaining()
            return min(asked or backoff(state), float("inf") if remaining is None else max(remaining, 0.0))

        return wait

    def may_retry(self, error: ModelError) -> bool:
        """Whether the failure may pass, nothing was said yet, and there is time to wait."""
        wait = error.retry_after or FIRST_WAIT
        remaining = self._remaining()
        in_time = wait <= LONGEST_WAIT and (remaining is None or wait < remaining)
        return error.retryable and not self.spoken and in_time and self.caller.retries > 0

    async def make(self) -> Completion:
        """One attempt, recorded whatever comes of it."""
        self.number += 1
        self.begun, self.received, self.usage, self.inside = False, False, None, []
        started = self.caller.elapsed()
        try:
            completion = await self._whatever_the_model_makes_of_cancelling()
        except asyncio.CancelledError:
            if self.begun:
                self._record(started, "cancelled", error="cancelled before it was done")
            raise
        except ConductorError as error:
            self._record(started, _outcome(error), failure=error)
            if type(error) is ModelError and error.status is None:  # no adapter knows what went wrong
                who = f"attempt {self.number}" if self.worker is None else f"{self.worker}, attempt {self.number}"
                log.warning("a call to %s failed (%s): %s", self.model.name, who, for_log(error, self.model))
            raise
        self._record(started, "ok", completion=completion)
        return completion

    async def _whatever_the_model_makes_of_cancelling(self) -> Completion:
        """The attempt; a model that turns its cancellation into an error or a reply is cancelled all the same."""
        task = asyncio.current_task()
        before = task.cancelling() if task else 0  # who was cancelled earlier may be at work on its farewell
        try:
            return await self._in_time()
        finally:
            if task is not None and task.cancelling() > before:
                raise asyncio.CancelledError

    async def _in_time(self) -> Completion:
        """The attempt, waiting for room included, given up at the run's deadline."""
        remaining = self._remaining()
        if remaining is None:
            return await self._placed()
        if remaining <= 0:
            raise self._too_late()
        clock = asyncio.timeout(remaining)
        try:
            async with clock:
                return await self._placed()
        except (TimeoutError, ModelError):
            if clock.expired():
                raise self._too_late() from None
            raise

    def _remaining(self) -> float | None:
        """Seconds until the deadline of the call or of the run, whichever comes first; `None` without one."""
        run = self.caller.remaining()
        if self.deadline is None:
            return run
        call = self.deadline - self.caller.elapsed()
        return call if run is None else min(call, run)

    def _too_late(self) -> LimitError:
        (_, seconds), elapsed = self.caller.deadline() or (0.0, 0.0), self.caller.elapsed()
        over = f"limits.seconds={seconds:g} was over"
        if self.deadline is not None and self.deadline < seconds:
            over = f"the first {self.deadline:.3g} s of limits.seconds={seconds:g} were over"
        return LimitError(f"{over} before {self.model.name} had answered", limit="seconds", needed=elapsed, left=0.0)

    async def _placed(self) -> Completion:
        """The attempt once there is room for it; a conductor takes none itself, its own calls do."""
        if self.model.capabilities.delegates:
            return await self._timed(None)
        async with self.slot:
            held = self.caller.ledger.reserve(self.model.name, upper_bound(self.request, self.model.price))
            async with held:
                return await self._timed(held)

    async def _timed(self, held: Reservation | None) -> Completion:
        """The call itself, given up at its own timeout."""
        self.on_attempt(self.number)
        self.begun = True
        if held is not None:
            held.begin()
        around = enclosing.set(self.caller.ledger)
        room, told = holding.set(held), reports.set(self.inside)
        clock = asyncio.timeout(self.request.timeout)
        try:
            async with clock:
                completion = await self._answer()
        except (TimeoutError, ModelError) as error:
            if held is not None and self._refused(error):
                held.release()
            if clock.expired():
                raise self._no_answer(f"within {self.request.timeout:g} s") from None
            if isinstance(error, TimeoutError):  # one that the model itself knows
                raise self._no_answer(f"in time: {error}") from None
            raise
        finally:
            enclosing.reset(around)
            holding.reset(room)
            reports.reset(told)
        self.usage = completion.usage
        if held is not None:
            held.settle(completion.usage)
        return checked(_offered(completion, self.request))

    def _no_answer(self, when: str) -> ModelTimeoutError:
        return ModelTimeoutError(f"{self.model.name} gave no answer {when}", model=self.model.name)

    async def _answer(self) -> Completion:
        reader = self._reader()
        if self.on_text is None:
            with self._failing_as_a_model():
                completion: Completion | None = await self.model.complete(self.request)
        else:
            completion = await self._streamed(self.on_text, reader)
        if completion is None:
            why = "the stream ended before the reply was complete"
            raise BadResponseError(f"{self.model.name}: {why}", model=self.model.name)
        return reader.split(completion, learn=self.request.response_format is None) if reader else completion

    def _reader(self) -> ReplyReader | None:
        if self.memory is None:
            return None
        declared = self.model.capabilities.reasoning_start
        return ReplyReader(self.memory, declared, self.model.name, streamed=self.on_text is not None)

    async def _streamed(self, on_text: Callable[[str], None], reader: ReplyReader | None) -> Completion | None:
        completion = None

        def pass_on(answer: str) -> None:
            if answer:
                self.spoken = True
                on_text(answer)

        async with aclosing(self._deltas()) as deltas:
            async for delta in deltas:
                self.received = self.received or bool(delta.text or delta.reasoning)
                pass_on(reader.add(delta) if reader else delta.text)
                completion = delta.completion or completion
        if completion is not None and reader is not None:
            pass_on(reader.rest(completion))
        return completion

    async def _deltas(self) -> AsyncGenerator[Delta, None]:
        with self._failing_as_a_model():
            async with aclosing(self.model.stream(self.request)) as deltas:
                async for delta in deltas:
                    yield delta

    @contextmanager
    def _failing_as_a_model(self) -> Iterator[None]:
        """A user's own model may raise anything; what a listener to its text raises is another matter."""
        try:
            yield
        except (ConductorError, TimeoutError, ScriptError):
            raise
        except Exception as error:
            said = without_secrets(str(error), secrets_in(self.model))
            message = f"{self.model.name} raised {type(error).__name__}: {said}"
            # A traceback would quote the key as well.
            raise ModelError(message, model=self.model.name) from (error if said == str(error) else None)

    def _record(
        self,
        started: float,
        outcome: CallOutcome,
        *,
        completion: Completion | None = None,
        failure: ConductorError | None = None,
        error: str | None = None,
    ) -> None:
        self.calls.append(
            Call(
                model=self.model.name,
                worker=self.worker,
                fingerprint=fingerprint(self.request),
                request=self.request if self.caller.keep_prompts else None,
                completion=completion,
                outcome=outcome,
                error=str(failure) if failure else error,
                retryable=isinstance(failure, ModelError) and failure.retryable,
                broke_off=self.spoken and completion is None,
                usage=self._used(failure, made=self.begun and outcome != "refused"),
                started=started,
                seconds=self.caller.elapsed() - started,
            )
        )

    def _used(self, failure: ConductorError | None, *, made: bool) -> Usage:
        """What the attempt used: when nobody knows and it may have been billed, the cost is a lower bound."""
        if self.usage is not None:
            return self.usage
        if self.inside:
            return total(self.inside)
        free = not made or self._refused(failure) or self._costs_nothing()
        return Usage(calls=int(made), unpriced_calls=int(not free))

    def _refused(self, failure: Exception | None) -> bool:
        refused = isinstance(failure, ModelError) and (
            isinstance(failure, REFUSALS) or failure.status in REFUSAL_STATUSES
        )
        return refused and not self.received

    def _costs_nothing(self) -> bool:
        price = self.model.price
        free = price is not None and not (price.input or price.output or price.per_call)
        return free and not self.model.capabilities.delegates


def _offered(completion: Completion, request: Request) -> Completion:
    """The reply without calls of tools that it was not offered: it made them up, and nobody could answer them."""
    names = {tool.name for tool in request.tools}
    calls = tuple(call for call in completion.message.tool_calls if call.name in names)
    if len(calls) == len(completion.message.tool_calls):
        return completion
    message = completion.message.model_copy(update={"tool_calls": calls})
    finish = completion.finish_reason if calls else "stop"
    return completion.model_copy(update={"message": message, "finish_reason": finish})


def for_log(error: object, model: Model) -> str:
    """The text of an error on one line, without the keys in `model`: vendors and models wrote parts of it."""
    text = without_secrets(str(error), secrets_in(model))[:LONGEST_ERROR]
    return "".join(character if character.isprintable() else " " for character in text)


def _outcome(error: ConductorError) -> CallOutcome:
    if isinstance(error, LimitError):
        return "timeout" if error.limit == "seconds" else "refused"
    return "timeout" if isinstance(error, ModelTimeoutError) else "error"
