"""`RunSpending`: the spending of all processes of a learning run, by the replies and the rows in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from rl_conductor._internal.jsonl import read_value, write_value
from rl_conductor.calls.budget import NOTHING, Amount
from rl_conductor.models.cached import stored_usage
from rl_conductor.types import Usage, Value
from rl_conductor_training.learn.experience import Experience
from rl_conductor_training.learn.workspace import REPLIES_FILE

STARTS_FILE = "starts.json"


class RunStart(Value):
    """The state of the folder when a run began, or went on after another one."""

    key: str
    """Identifies the workers and the questions: with others, another run begins in the folder."""
    usage: Usage
    """Usage of all runs in the folder until then."""


class RunStarts(Value):
    """The runs in a folder."""

    starts: tuple[RunStart, ...] = ()
    """In the order of time; a run that went on after another one is there again."""


class RunSpending:
    """The spending of all processes of a run; that of other runs in its folder is not part of it."""

    def __init__(self, folder: Path, experience: Experience, key: str) -> None:
        """Reads when the run with this key began, or notes that it begins or goes on now."""
        self._replies, self._experience, self._key = folder / REPLIES_FILE, experience, key
        path = folder / STARTS_FILE
        runs = read_value(path, RunStarts) if path.exists() else RunStarts()
        if not runs.starts or runs.starts[-1].key != key:
            runs = RunStarts(starts=(*runs.starts, RunStart(key=key, usage=self._stored_usage())))
            write_value(path, runs)
        self._starts = runs.starts

    @property
    def amount(self) -> Amount:
        """The spending until now."""
        return sum((Amount.of(end) - Amount.of(start) for start, end in self._periods()), NOTHING)

    @property
    def unpriced_calls(self) -> int:
        """Number of calls until now whose price is unknown."""
        return sum(end.unpriced_calls - start.unpriced_calls for start, end in self._periods())

    def _periods(self) -> Iterator[tuple[Usage, Usage]]:
        """Yields the usage of the folder at the beginning and the end of each period in which it was this run's."""
        now = RunStart(key="", usage=self._stored_usage())
        return ((start.usage, end.usage) for start, end in pairwise((*self._starts, now)) if start.key == self._key)

    def _stored_usage(self) -> Usage:
        return stored_usage(self._replies) + self._experience.scoring_usage()
