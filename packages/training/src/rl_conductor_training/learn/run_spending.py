"""`RunSpending`: the spending of all processes of a learning run, by the replies and the rows in its folder."""

from __future__ import annotations

from pathlib import Path

from rl_conductor._internal.jsonl import read_value, write_value
from rl_conductor.calls.budget import Amount
from rl_conductor.models.cached import stored_usage
from rl_conductor.types import Usage, Value
from rl_conductor_training.learn.experience import Experience
from rl_conductor_training.learn.workspace import REPLIES_FILE

START_FILE = "run.json"


class RunStart(Value):
    """The state of the folder when the run began."""

    key: str
    """Identifies the workers and the questions: with others, another run begins in the folder."""
    earlier_usage: Usage
    """Usage of the earlier runs in the folder."""


class RunSpending:
    """The spending of all processes of a run; that of earlier runs in its folder is not part of it."""

    def __init__(self, folder: Path, experience: Experience, key: str) -> None:
        """Reads when the run with this key began, or notes that it begins now."""
        self._replies, self._experience = folder / REPLIES_FILE, experience
        path = folder / START_FILE
        start = read_value(path, RunStart) if path.exists() else None
        if start is None or start.key != key:
            start = RunStart(key=key, earlier_usage=self._stored_usage())
            write_value(path, start)
        self._start = start

    @property
    def amount(self) -> Amount:
        """The spending until now."""
        return Amount.of(self._stored_usage()) - Amount.of(self._start.earlier_usage)

    @property
    def unpriced_calls(self) -> int:
        """Number of calls until now whose price is unknown."""
        return self._stored_usage().unpriced_calls - self._start.earlier_usage.unpriced_calls

    def _stored_usage(self) -> Usage:
        return stored_usage(self._replies) + self._experience.scoring_usage()
