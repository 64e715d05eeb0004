"""The caps of a learning run, which its stages share, and the spending of all of its processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from math import ceil
from pathlib import Path

from pydantic import Field

from rl_conductor._internal.jsonl import read_value, write_value
from rl_conductor.calls.budget import NOTHING, Amount, Budget, Reservation
from rl_conductor.types import Dollars, Usage, Value
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.learn.experience import Experience
from rl_conductor_training.learn.search.costs import Cost
from rl_conductor_training.learn.workspace import REPLIES_FILE
from rl_conductor_training.spending import SHARE_DIGITS
from rl_conductor_training.workers.cached_model import stored_usage

STARTS_FILE = "starts.json"


class LearningBudget:
    """The caps of a whole learning run; each stage may use a part of them, counted from the start of learning."""

    def __init__(self, limits: Limits, previous_spending: Amount) -> None:
        """Creates the budget, from which earlier spending is already taken.

        Args:
            limits: the caps; `seconds` counts from now.
            previous_spending: what earlier processes of the same learning run have spent.
        """
        self.limits = limits
        self.total = Budget(limits, surrounds_runs=True)
        self.total.charge(previous_spending)
        self.started = time.monotonic()
        self.largest_call = Cost()
        """The most that a call has reserved, or would have reserved if it fitted, in each unit."""

    def stage(self, share: float) -> Budget:
        """Returns the budget of a stage, which ends when this share of the caps is spent."""
        limits = self.limits
        usd = None if limits.usd is None else round(limits.usd * Decimal(str(share)), SHARE_DIGITS)
        tokens = None if limits.tokens is None else int(limits.tokens * share)
        calls = None if limits.calls is None else ceil(limits.calls * share)
        seconds = None if limits.seconds is None else limits.seconds * share
        stage = _StageBudget(Limits(usd=usd, tokens=tokens, calls=calls, seconds=seconds), self)
        stage.charge(self.total.spent)
        stage.deadline = None if seconds is None else self.started + seconds
        return stage

    @property
    def elapsed(self) -> float:
        """Seconds since the start of this process's learning."""
        return time.monotonic() - self.started

    @property
    def spending(self) -> Cost:
        """Spending of all stages."""
        amounts = self.total.spent
        return Cost(usd=float(amounts.usd), tokens=amounts.tokens, calls=amounts.calls, seconds=self.elapsed)

    @property
    def tightest_cap(self) -> str:
        """The name of the cap that leaves the least room for the largest call; there is at least one cap."""
        return (self.spending + self.largest_call).tightest_cap(self.limits)

    def note_call(self, reserved: Amount) -> None:
        """Keeps the largest amounts that a call has reserved."""
        usd, tokens = float(reserved.usd), reserved.tokens
        largest = self.largest_call
        self.largest_call = Cost(usd=max(usd, largest.usd), tokens=max(tokens, largest.tokens), calls=1)


class _StageBudget(Budget):
    """The part of the caps that a stage may use."""

    def __init__(self, limits: Limits, shared: LearningBudget) -> None:
        super().__init__(limits, parent=shared.total, surrounds_runs=True)
        self._shared = shared

    async def acquire(self, reservation: Reservation) -> None:
        self._shared.note_call(reservation.amount)
        await super().acquire(reservation)


class RunStart(Value):
    """The state of the folder when a run began, or went on after another one."""

    key: str
    """Identifies the workers and the questions: with others, another run begins in the folder."""
    usage: Usage
    """Usage of all runs in the folder until then."""


class StoredSpending(Value):
    """The spending of a run."""

    usd: Dollars
    tokens: int
    calls: int


class RunStarts(Value):
    """The runs in a folder."""

    starts: tuple[RunStart, ...] = ()
    """Starts in order of time; a run that went on after another one is listed again."""
    spending: dict[str, StoredSpending] = Field(default_factory=dict)
    """The spending by the key of a run. It includes calls that left nothing else in the folder: those that failed, and
    those of a judge whose score was not stored before an interruption."""


class RunSpending:
    """The spending of all processes of a run; that of other runs in its folder is not part of it."""

    def __init__(self, folder: Path, experience: Experience, key: str) -> None:
        """Reads when the run with this key began, or notes that it begins or goes on now."""
        self._replies, self._experience, self._key = folder / REPLIES_FILE, experience, key
        self._path = folder / STARTS_FILE
        self._runs = read_value(self._path, RunStarts) if self._path.exists() else RunStarts()
        if not self._runs.starts or self._runs.starts[-1].key != key:
            start = RunStart(key=key, usage=self._stored_usage())
            self._update(starts=(*self._runs.starts, start))

    def save(self, spending: Amount) -> None:
        """Stores the spending until now."""
        stored = StoredSpending(usd=spending.usd, tokens=spending.tokens, calls=spending.calls)
        self._update(spending=self._runs.spending | {self._key: stored})

    def _update(self, **changed: object) -> None:
        self._runs = self._runs.model_copy(update=changed)
        write_value(self._path, self._runs)

    @property
    def amount(self) -> Amount:
        """The spending until now: the saved amount, or the usage of all replies if that is more."""
        stored = self.of_replies
        saved = self._runs.spending.get(self._key, stored)
        return Amount(max(saved.usd, stored.usd), max(saved.tokens, stored.tokens), max(saved.calls, stored.calls))

    @property
    def of_replies(self) -> Amount:
        """The usage of all replies until now, without calls that failed or were interrupted."""
        return sum((Amount.of(end) - Amount.of(start) for start, end in self._periods()), NOTHING)

    @property
    def unpriced_calls(self) -> int:
        """Number of calls without a known price until now."""
        return sum(end.unpriced_calls - start.unpriced_calls for start, end in self._periods())

    def _periods(self) -> Iterator[tuple[Usage, Usage]]:
        """Yields the usage of the folder at the beginning and the end of each period in which it was this run's."""
        now = RunStart(key="", usage=self._stored_usage())
        return (
            (start.usage, end.usage) for start, end in pairwise((*self._runs.starts, now)) if start.key == self._key
        )

    def _stored_usage(self) -> Usage:
        return stored_usage(self._replies) + self._experience.scoring_usage()
