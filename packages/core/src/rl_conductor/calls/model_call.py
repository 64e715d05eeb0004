"""Model calls of one run: limits are reserved, failures retried, and every attempt recorded.

The planner and the executor make all of their calls through `ModelCaller`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from rl_conductor.calls.budget import Amount
from rl_conductor.calls.clock import RunClock
from rl_conductor.calls.retry import RetryingCall
from rl_conductor.models.base import Model
from rl_conductor.models.reply import ReasoningMemory
from rl_conductor.trace.trace import Call
from rl_conductor.types import Completion, Request
from rl_conductor.workflow.limits import DEFAULT_OUTPUT_TOKENS

MIN_TIMEOUT = 0.001
"""Seconds: a request's timeout has to be above 0, even when the run's time is over."""


@dataclass
class ModelCaller(RunClock):
    """Calls models on behalf of one run, with one budget and one deadline."""

    retries: int = 2
    """Maximum number of retries of a call whose failure is retryable."""
    keep_prompts: bool = True
    """Whether requests are kept in the trace, or only their fingerprints."""

    def charge_previous(self, calls: Iterable[Call]) -> None:
        """Charges calls that this run made in another process, and sets the clock back by the time they took."""
        for call in calls:
            self.budget.charge(Amount.of(call.usage))
            self.began = min(self.began, time.monotonic() - call.started - call.seconds)

    async def complete(
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
        """Completes `request` with `model`, retrying as configured, and appends every attempt to `calls`.

        Reasoning in the text becomes a `ReasoningPart`, so that the text is the answer alone.

        Args:
            model: the model to call.
            request: the request to send; it gets a limit on output tokens if the budget depends on tokens.
            calls: receives the record of each attempt.
            worker: the worker's name, for the record; `None` for the planner.
            slot: held during each attempt, but not while waiting for the next.
            on_attempt: called with the number of each attempt as it begins, from 1.
            on_text: receives the answer as it streams; after the first piece a failure is final, because text that
                was passed on can't be taken back.
            reasoning: remembers how replies of this model separate reasoning; updated with this reply.
            raw_text: leave reasoning in the text.
            deadline: seconds since the run began after which the call is given up; the run's deadline by default.

        Raises:
            ModelError: the last attempt's failure.
            LimitError: a limit left no room for the call.
        """
        call = RetryingCall(
            clock=self,
            retries=self.retries,
            keep_prompts=self.keep_prompts,
            model=model,
            request=self._bounded(model, request),
            calls=calls,
            worker=worker,
            slot=slot or nullcontext(),
            on_attempt=on_attempt,
            on_text=on_text,
            memory=None if raw_text else reasoning or ReasoningMemory(),
            deadline=deadline,
        )
        return await call.run()

    def _bounded(self, model: Model, request: Request) -> Request:
        """Adds `max_tokens` where spending is limited, so that the request can't exceed its reservation.

        A conductor gets the remaining time as its timeout, so that its planning takes a share of that and no more.
        """
        if model.capabilities.delegates and (remaining := self.remaining()) is not None:
            timeout = remaining if request.timeout is None else request.timeout
            request = request.model_copy(update={"timeout": max(min(timeout, remaining), MIN_TIMEOUT)})
        is_bounded = request.sampling.max_tokens is not None or model.capabilities.delegates
        if is_bounded or not self.budget.counts_tokens:
            return request
        sampling = request.sampling.model_copy(update={"max_tokens": DEFAULT_OUTPUT_TOKENS})
        return request.model_copy(update={"sampling": sampling})
