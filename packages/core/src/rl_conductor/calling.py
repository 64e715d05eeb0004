"""One call to a model: reserved, timed, retried and recorded. Planner and executor make theirs here, and only here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from rl_conductor.errors import BadResponseError, ConductorError, LimitError, ModelError, ModelTimeoutError
from rl_conductor.ledger import Ledger, Reservation, enclosing
from rl_conductor.limits import estimate
from rl_conductor.models.base import Model, checked
from rl_conductor.trace import Call, Outcome, fingerprint
from rl_conductor.types import Completion, Request, Usage

LONGEST_WAIT = 60.0
"""Seconds: a vendor that asks for a longer pause is given up instead."""
FIRST_WAIT, MOST_WAIT = 0.5, 8.0

NOT_BILLED = (400, 401, 403, 404, 413, 422, 429)
"""Statuses of calls that vendors refuse without reading, so that nothing is charged for them."""


@dataclass
class Caller:
    """How one run calls models: on one ledger, one clock and one deadline."""

    ledger: Ledger
    retries: int = 2
    """Most repetitions of a call that failed for a reason that may pass."""
    keep_content: bool = True
    """Whether requests are kept in the trace, or only their fingerprints."""
    began: float = field(default_factory=time.monotonic)

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    def remaining(self) -> float | None:
        """Seconds until the run's deadline; `None` without one."""
        seconds = self.ledger.limits.seconds
        return None if seconds is None else seconds - self.elapsed()

    async def ask(
        self,
        model: Model,
        request: Request,
        *,
        calls: list[Call],
        on_attempt: Callable[[int], None] = lambda _: None,
        on_text: Callable[[str], None] | None = None,
    ) -> Completion:
        """The reply of `model`, after as many attempts as it takes; each is appended to `calls`.

        With `on_text` the reply is streamed into it; once a piece was passed on, a failure is final, since
        what was said can't be taken back.

        Raises:
            ModelError: the last attempt's failure.
            LimitError: a limit left no room for the call.
        """
        attempt = _Attempts(self, model, request, calls, on_attempt, on_text)
        try:
            return await attempt.make()
        except ModelError as error:
            if not attempt.may_retry(error):
                raise
            return await attempt.repeat(error)


@dataclass
class _Attempts:
    """The attempts at one call."""

    caller: Caller
    model: Model
    request: Request
    calls: list[Call]
    on_attempt: Callable[[int], None]
    on_text: Callable[[str], None] | None
    made: int = 0
    spoken: bool = False

    async def repeat(self, first: ModelError) -> Completion:
        """Wait and try again until it works, the retries are used up, or waiting is pointless."""
        # Imported here because only a failed call needs it: it is a third of this package's import time.
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter  # noqa: PLC0415

        backoff = wait_exponential_jitter(initial=FIRST_WAIT, max=MOST_WAIT)
        known: list[ModelError] = [first]

        async def attempt() -> Completion:
            if known:  # the first attempt was made outside: tenacity costs more than the rest of a good call
                raise known.pop()
            return await self.make()

        retrying = AsyncRetrying(
            stop=stop_after_attempt(1 + self.caller.retries),
            retry=retry_if_exception(lambda error: isinstance(error, ModelError) and self.may_retry(error)),
            wait=lambda state: self._asked_wait(state.outcome.exception()) or backoff(state),  # type: ignore[union-attr]
            reraise=True,
        )
        return await retrying(attempt)

    def may_retry(self, error: ModelError) -> bool:
        """Whether the failure may pass, nothing was said yet, and there is time to wait."""
        wait = error.retry_after or FIRST_WAIT
        remaining = self.caller.remaining()
        in_time = wait <= LONGEST_WAIT and (remaining is None or wait < remaining)
        return error.retryable and not self.spoken and in_time and self.caller.retries > 0

    @staticmethod
    def _asked_wait(error: BaseException | None) -> float | None:
        return error.retry_after if isinstance(error, ModelError) else None

    async def make(self) -> Completion:
        """One attempt, recorded whatever comes of it."""
        self.made += 1
        started = self.caller.elapsed()
        try:
            completion = await self._reserved()
        except asyncio.CancelledError:
            self._record(started, "cancelled", error="cancelled before it was done")
            raise
        except ConductorError as error:
            self._record(started, _outcome(error), failure=error)
            raise
        except AssertionError:
            raise
        except Exception as error:  # a user's own model may raise anything: it becomes data on the trace
            self._fail(started, error)
        self._record(started, "ok", completion=completion)
        return completion

    async def _reserved(self) -> Completion:
        if self.model.capabilities.delegates:
            return await self._timed(None)
        async with self.caller.ledger.reserve(self.model.name, estimate(self.request, self.model.price)) as held:
            return await self._timed(held)

    async def _timed(self, held: Reservation | None) -> Completion:
        """The call itself, given up at its own timeout or the run's deadline, whichever comes first."""
        remaining = self.caller.remaining()
        if remaining is not None and remaining <= 0:
            raise _too_late(self.caller, self.model)
        self.on_attempt(self.made)
        token = enclosing.set(self.caller.ledger)
        limit = min((s for s in (remaining, self.request.timeout) if s is not None), default=None)
        try:
            async with asyncio.timeout(limit):
                completion = checked(await self._answer())
        except TimeoutError:
            raise self._timed_out(limit) from None
        except ModelError as error:
            if held is not None and error.status in NOT_BILLED:
                held.release()
            raise
        finally:
            enclosing.reset(token)
        if held is not None:
            held.settle(completion.usage)
        return completion

    async def _answer(self) -> Completion:
        if self.on_text is None:
            return await self.model.complete(self.request)
        completion = None
        async for delta in self.model.stream(self.request):
            if delta.text:
                self.spoken = True
                self.on_text(delta.text)
            completion = delta.completion
        if completion is None:
            why = "the stream ended before the reply was complete"
            raise BadResponseError(f"{self.model.name}: {why}", model=self.model.name)
        return completion

    def _timed_out(self, limit: float | None) -> ConductorError:
        remaining = self.caller.remaining()
        if remaining is not None and remaining <= 0:
            return _too_late(self.caller, self.model)
        return ModelTimeoutError(f"{self.model.name} gave no answer within {limit:g} s", model=self.model.name)

    def _fail(self, started: float, error: Exception) -> NoReturn:
        failure = ModelError(f"{self.model.name} raised {type(error).__name__}: {error}", model=self.model.name)
        self._record(started, "error", failure=failure)
        raise failure from error

    def _record(
        self,
        started: float,
        outcome: Outcome,
        *,
        completion: Completion | None = None,
        failure: ConductorError | None = None,
        error: str | None = None,
    ) -> None:
        made = outcome != "refused"
        used = (
            completion.usage
            if completion
            else Usage(calls=int(made), unpriced_calls=int(made and self._may_cost(failure)))
        )
        self.calls.append(
            Call(
                model=self.model.name,
                fingerprint=fingerprint(self.request),
                request=self.request if self.caller.keep_content else None,
                completion=completion,
                outcome=outcome,
                error=str(failure) if failure else error,
                retryable=isinstance(failure, ModelError) and failure.retryable,
                usage=used,
                started=started,
                seconds=self.caller.elapsed() - started,
            )
        )

    def _may_cost(self, failure: ConductorError | None) -> bool:
        """Whether a failed call may have been billed: then the run's cost is a lower bound, and says so."""
        price = self.model.price
        free = price is not None and not (price.input or price.output or price.per_call)
        refused = isinstance(failure, ModelError) and failure.status in NOT_BILLED
        return not free and not refused


def _outcome(error: ConductorError) -> Outcome:
    if isinstance(error, LimitError):
        return "timeout" if error.limit == "seconds" else "refused"
    return "timeout" if isinstance(error, ModelTimeoutError) else "error"


def _too_late(caller: Caller, model: Model) -> LimitError:
    seconds = caller.ledger.limits.seconds or 0.0
    return LimitError(
        f"limits.seconds={seconds:g} was over before {model.name} had answered",
        limit="seconds",
        needed=caller.elapsed(),
        left=0.0,
    )
