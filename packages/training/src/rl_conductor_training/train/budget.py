"""`TrainingBudget`: the caps on the calls to workers of a training run."""

from __future__ import annotations

import time
from decimal import Decimal

from rl_conductor.calls.budget import NOTHING, Amount, Budget
from rl_conductor.errors import ConductorError
from rl_conductor.trace.trace import Trace
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.spending import SHARE_DIGITS, cached_amount, unanswered_amount, was_limited


class CapReachedError(ConductorError):
    """A cap of the run is used up, so the current step can't be finished."""

    def __init__(self) -> None:
        super().__init__("a cap of the training run is used up")


class TrainingBudget:
    """The caps on the calls to workers of a whole training run, or of one of its processes."""

    def __init__(self, limits: Limits, previous: Amount = NOTHING, *, share: int = 1) -> None:
        """Creates the budget, from which earlier spending is already taken.

        Args:
            limits: the caps on dollars, tokens and time; `seconds` counts from now.
            previous: what earlier calls of the same run have spent.
            share: number of processes that share dollars and tokens evenly.
        """
        usd = None if limits.usd is None else max(limits.usd - previous.usd, Decimal(0)) / share
        tokens = None if limits.tokens is None else max(limits.tokens - previous.tokens, 0) // share
        rounded = None if usd is None else round(usd, SHARE_DIGITS)
        self.calls = Budget(Limits(usd=rounded, tokens=tokens, seconds=limits.seconds), surrounds_runs=True)
        """The budget that each call is charged to."""
        self.calls.deadline = None if limits.seconds is None else time.monotonic() + limits.seconds
        self.is_exhausted = False
        """Whether a call was refused or cancelled by a cap."""
        self.unanswered = NOTHING
        """The part of the spending that is the upper bound of calls that failed."""

    @property
    def spending(self) -> Amount:
        """The spending since the budget was created, without replies from the cache."""
        return self.calls.spent

    @property
    def is_over(self) -> bool:
        """Whether a cap was reached."""
        deadline = self.calls.deadline
        return self.is_exhausted or (deadline is not None and time.monotonic() >= deadline)

    def settle(self, trace: Trace) -> None:
        """Takes back the charges for cached replies of a finished run, and notes whether a cap ended it."""
        self.calls.charge(NOTHING - cached_amount(trace.calls))
        self.unanswered += unanswered_amount(trace.calls)
        self.is_exhausted = self.is_exhausted or was_limited(trace, self.calls)
