"""Retries one model call with backoff, within its deadline, and records each attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rl_conductor.calls.attempt import Attempt
from rl_conductor.calls.clock import RunClock
from rl_conductor.calls.record import format_for_log, log, outcome_of
from rl_conductor.errors import ConductorError, ModelError
from rl_conductor.models.base import Model
from rl_conductor.models.reply import ReasoningMemory
from rl_conductor.trace.trace import Call, CallOutcome, fingerprint
from rl_conductor.types import Completion, Request

if TYPE_CHECKING:
    from tenacity import RetryCallState

MAX_RETRY_AFTER = 60.0
"""Seconds: a call is not retried when the vendor asks for a longer pause."""
INITIAL_BACKOFF, MAX_BACKOFF = 0.5, 8.0
"""Seconds."""


@dataclass
class RetryingCall:
    """One call, attempted until it succeeds, its retries are used up, or waiting is pointless."""

    clock: RunClock
    retries: int
    keep_prompts: bool
    model: Model
    request: Request
    calls: list[Call]
    """Receives the record of each attempt."""
    worker: str | None
    slot: AbstractAsyncContextManager[object]
    on_attempt: Callable[[int], None]
    on_text: Callable[[str], None] | None
    memory: ReasoningMemory | None
    """`None` leaves reasoning in the text."""
    deadline: float | None = None
    """Seconds since the run began after which this call is given up, though the run may go on."""
    attempts: int = 0
    has_streamed: bool = False
    """Whether a piece of the answer was passed on."""

    async def run(self) -> Completion:
        """Makes the first attempt, and retries it if it fails."""
        try:
            return await self._attempt()
        except ModelError as error:
            if not self._may_retry(error):
                raise
            return await self._retry(error)

    async def _retry(self, first: ModelError) -> Completion:
        # Imported here because only a failed call needs it: it is a third of this package's import time.
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter  # noqa: PLC0415

        first_error: list[ModelError] = [first]

        async def attempt() -> Completion:
            if first_error:  # made outside of tenacity, which costs more than the rest of a successful call
                raise first_error.pop()
            return await self._attempt()

        retrying = AsyncRetrying(
            stop=stop_after_attempt(1 + self.retries),
            retry=retry_if_exception(lambda error: isinstance(error, ModelError) and self._may_retry(error)),
            wait=self._within_deadline(wait_exponential_jitter(initial=INITIAL_BACKOFF, max=MAX_BACKOFF)),
            reraise=True,
        )
        return await retrying(attempt)

    def _within_deadline(self, backoff: Callable[[RetryCallState], float]) -> Callable[[RetryCallState], float]:
        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            retry_after = error.retry_after if isinstance(error, ModelError) else None
            remaining = self.clock.remaining(self.deadline)
            return min(retry_after or backoff(state), float("inf") if remaining is None else max(remaining, 0.0))

        return wait

    def _may_retry(self, error: ModelError) -> bool:
        """Whether the failure is retryable, no text was passed on, and there is time to wait."""
        wait = error.retry_after or INITIAL_BACKOFF
        remaining = self.clock.remaining(self.deadline)
        in_time = wait <= MAX_RETRY_AFTER and (remaining is None or wait < remaining)
        return error.retryable and not self.has_streamed and in_time and self.retries > 0

    async def _attempt(self) -> Completion:
        """Makes one attempt and records it, however it ends."""
        self.attempts += 1
        attempt = Attempt(
            clock=self.clock,
            model=self.model,
            request=self.request,
            slot=self.slot,
            on_start=partial(self.on_attempt, self.attempts),
            on_text=self.on_text,
            memory=self.memory,
            deadline=self.deadline,
        )
        started = self.clock.elapsed()
        try:
            completion = await attempt.run()
        except asyncio.CancelledError:
            if attempt.reached_model:
                self._record(attempt, started, "cancelled", error="cancelled before it was done")
            raise
        except ConductorError as error:
            self._record(attempt, started, outcome_of(error), failure=error)
            if type(error) is ModelError and error.status is None:  # no adapter knows the cause
                who = f"attempt {self.attempts}" if self.worker is None else f"{self.worker}, attempt {self.attempts}"
                log.warning("a call to %s failed (%s): %s", self.model.name, who, format_for_log(error, self.model))
            raise
        finally:
            self.has_streamed = attempt.has_streamed
        self._record(attempt, started, "ok", completion=completion)
        return completion

    def _record(
        self,
        attempt: Attempt,
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
                request=self.request if self.keep_prompts else None,
                completion=completion,
                outcome=outcome,
                error=str(failure) if failure else error,
                retryable=isinstance(failure, ModelError) and failure.retryable,
                broke_off=attempt.has_streamed and completion is None,
                usage=attempt.usage_after(failure, was_sent=attempt.reached_model and outcome != "refused"),
                started=started,
                seconds=self.clock.elapsed() - started,
            )
        )
