"""`ModelCall`: one call to a model, retried with backoff within its deadline; every attempt is recorded.

The planner and the executor make all of their calls through it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from rl_conductor.calls.attempt import Attempt
from rl_conductor.calls.budget import FollowUp
from rl_conductor.calls.context import RunContext
from rl_conductor.calls.failures import format_for_log, log, needs_warning, outcome_of
from rl_conductor.calls.pause import PauseSignal
from rl_conductor.errors import ConductorError, ContextLengthError, ModelError, OutputLimitError, ReplyFormatError
from rl_conductor.models.base import Model
from rl_conductor.models.replies.reasoning_reader import ReasoningMemory
from rl_conductor.trace.fingerprint import fingerprint
from rl_conductor.trace.outcomes import CallOutcome
from rl_conductor.trace.trace import Call
from rl_conductor.types import Completion, Request
from rl_conductor.workflow.request_tokens import DEFAULT_OUTPUT_TOKENS

MAX_RETRY_AFTER = 60.0
"""Seconds: a call is not retried when the vendor asks for a longer pause."""
INITIAL_BACKOFF, MAX_BACKOFF = 0.5, 8.0
"""Seconds."""


@dataclass(kw_only=True, slots=True)
class ModelCall:
    """One request to one model, on behalf of a run and within its limits."""

    run: RunContext
    model: Model
    request: Request
    """It gets a limit on output tokens if the run's budget depends on tokens."""
    calls: list[Call]
    """Receives the record of each attempt."""
    worker: str | None = None
    """The worker's name, for the record; `None` for the planner."""
    slot: AbstractAsyncContextManager[object] | None = None
    """Entered for each attempt, but not while waiting for the next."""
    on_attempt: Callable[[int], None] | None = None
    """Called with the number of each attempt as it begins, from 1."""
    on_text: Callable[[str], None] | None = None
    """Receives the answer as it streams. After the first piece a failure is final, because text that was passed on
    can't be taken back."""
    on_reasoning: Callable[[str], None] | None = None
    """Receives the reasoning as it streams, if `on_text` is set; that of a failed attempt as well."""
    reasoning: ReasoningMemory | None = field(default_factory=ReasoningMemory)
    """Remembers how replies of this model separate reasoning, which becomes a `ReasoningPart`; `None` leaves reasoning
    in the text."""
    deadline: float | None = None
    """Seconds since the run began after which the call is given up; the run's own deadline holds as well."""
    checks_format: bool = False
    """Whether a reply without the format or the tool call that the request requires is a failure."""
    follow_up: FollowUp | None = None
    """The call is refused if the limits don't leave enough for this one."""
    attempts: int = field(default=0, init=False)
    has_streamed: bool = field(default=False, init=False)
    """Whether a piece of the answer was passed on to `on_text`."""

    async def complete(self) -> Completion:
        """Makes the call, with retries if it fails, and returns the reply.

        Raises:
            ModelError: the last attempt's failure.
            LimitError: a limit left no room for the call.
        """
        self.request = self._bounded_request()
        while True:
            try:
                return await self._attempt()
            except ModelError as error:
                pause = self._pause_after(error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    def _bounded_request(self) -> Request:
        """Adds `max_tokens` where spending is limited, so that the request can't exceed its reservation.

        A conductor gets the remaining time as its timeout, so that its planning takes a share of that and no more.
        """
        request, budget = self.request, self.run.budget
        if self.model.capabilities.delegates:
            remaining = self.run.remaining()
            return request if remaining is None else request.within_seconds(remaining)
        if request.sampling.max_tokens is not None or not budget.counts_tokens:
            return request
        sampling = request.sampling.model_copy(update={"max_tokens": DEFAULT_OUTPUT_TOKENS})
        return request.model_copy(update={"sampling": sampling})

    def _pause_after(self, error: ModelError) -> float | None:
        """Returns the seconds to wait before the next attempt; `None` if there is none."""
        retries = max(self.run.retries, error.min_retries) if error.max_retries is None else error.max_retries
        if not error.retryable or self.has_streamed or self.attempts > retries:
            return None
        remaining = self.run.remaining(self.deadline)
        min_pause = error.retry_after or INITIAL_BACKOFF
        if min_pause > MAX_RETRY_AFTER or (remaining is not None and min_pause >= remaining):
            return None
        backoff = min(INITIAL_BACKOFF * 2 ** (self.attempts - 1) + random.random(), MAX_BACKOFF)  # noqa: S311  (jitter)
        pause = error.retry_after or backoff
        return pause if remaining is None else min(pause, remaining)

    async def _attempt(self) -> Completion:
        """Makes one attempt and records it, however it ends."""
        self.attempts += 1
        attempt = Attempt(self)
        started = self.run.elapsed()
        try:
            completion = await attempt.complete()
        except PauseSignal:
            if attempt.usage is not None and attempt.usage.calls:  # none if only another step goes on
                self._record(attempt, started, "paused")
            raise
        except ConductorError as error:
            self._record(attempt, started, outcome_of(error, reached_model=attempt.reached_model), failure=error)
            if needs_warning(error):
                which = f"attempt {self.attempts}" if self.worker is None else f"{self.worker}, attempt {self.attempts}"
                log.warning("a call to %s failed (%s): %s", self.model.name, which, format_for_log(error, self.model))
            raise
        except BaseException:  # it was cancelled, or a listener raised an error
            if attempt.reached_model:
                self._record(attempt, started, "cancelled", error="cancelled before it was done")
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
        was_sent = attempt.reached_model and outcome != "refused"
        fields: dict[str, Any] = {
            "model": self.model.name,
            "worker": self.worker,
            "request": self.request if self.run.keep_prompts else None,
            "fingerprint": None if self.run.keep_prompts else fingerprint(self.request),
            "completion": completion,
            "outcome": outcome,
            "broke_off": attempt.has_streamed and completion is None,
            "usage": attempt.usage_after(failure, was_sent=was_sent),
            "started": started,
            "seconds": self.run.elapsed() - started,
            "nested": attempt.nested.to_nested(),
        }
        if (charged := attempt.charge_beyond(fields["usage"])) is not None:
            fields["charged"] = charged
        if outcome == "ok":
            self.calls.append(Call.unchecked(**fields))
        else:
            self.calls.append(Call(**fields | ({"error": error} if failure is None else _failure_fields(failure))))


def _failure_fields(failure: ConductorError) -> dict[str, Any]:
    """Returns the fields of a `Call` that describe why it failed."""
    fields: dict[str, Any] = {
        "error": str(failure),
        "out_of_tokens": isinstance(failure, OutputLimitError),
        "context_exceeded": isinstance(failure, ContextLengthError),
    }
    if isinstance(failure, ModelError):
        fields |= {"status": failure.status, "retryable": failure.retryable, "retry_after": failure.retry_after}
    if isinstance(failure, ReplyFormatError):
        fields["completion"] = failure.completion
    return fields
