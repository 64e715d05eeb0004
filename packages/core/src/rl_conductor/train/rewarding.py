"""TRL's reward function: what the rows of a batch are worth, and what is told of the step. Runs nothing.

The plans for a question may lie in several processes, so each of these looks at the rows of all: then ranks, sums and
shares are those of the whole step, and equal everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

from accelerate import PartialState
from accelerate.utils import gather_object

from rl_conductor.train.config import TrainConfig
from rl_conductor.train.diagnostics import Reference, diagnostics
from rl_conductor.train.exercises import Exercise
from rl_conductor.train.outcomes import Drawn, Outcome
from rl_conductor.train.rewards import over_rounds, rewards
from rl_conductor.train.rollouts import Played

Told = Callable[[int, Sequence[Drawn]], None]
"""Told of each batch: the step it is for, from 1, and the plans."""


class Row(NamedTuple):
    """What the other processes have to know of a row."""

    exercise: int
    outcome: Outcome | None
    before: Outcome | None

    @classmethod
    def of(cls, played: Played) -> Row:
        """Without what was done for the answers: nobody is rewarded for that, and it is long."""
        outcome, before = (one and one.model_copy(update={"round": None}) for one in (played.outcome, played.before))
        return cls(played.exercise.number, outcome, before)


class Reward:
    """Rewards the rows of a batch, a question at a time."""

    __name__ = "reward"

    def __init__(
        self, config: TrainConfig, exercises: Sequence[Exercise], references: Mapping[str, Reference], *, told: Told
    ) -> None:
        """Take what is needed to reward.

        Args:
            config: the run's.
            exercises: all of them, by number.
            references: how well others do, by sample.
            told: told of the plans, in one of the processes.
        """
        self._config = config
        self._exercises = exercises
        self._references = references
        self._told = told

    def __call__(
        self, *, played: list[Played], trainer_state: Any, log_metric: Callable[[str, float], None], **_: Any
    ) -> list[float | None]:
        """The rewards of rows, which stand together by question and, within it, by round."""
        rows: list[Row] = gather_object(list(map(Row.of, played)))
        questions = [list(same) for _, same in groupby(rows, key=lambda row: row.exercise)]
        first = [[row.outcome for row in same if row.outcome and not row.before] for same in questions]
        second = [[row.outcome for row in same if row.before] for same in questions]
        given = list(chain.from_iterable(map(self._rewards, first, second)))
        known = [self._references.get(self._exercises[same[0].exercise].sample.id) for same in questions]
        judged = [(row.before, row.outcome) for row in rows if row.before]
        for name, value in diagnostics(first, given, known, judged=judged).items():
            log_metric(f"plans/{name}", value)
        flat = list(chain.from_iterable(given))
        if trainer_state.is_world_process_zero:
            self._tell(trainer_state.global_step + 1, rows, flat)
        start = PartialState().process_index * len(played)
        return flat[start : start + len(played)]

    def _rewards(self, first: Sequence[Outcome], second: Sequence[Outcome | None]) -> list[list[float | None]]:
        """Those of each round that there was."""
        entry, recursion = self._config.reward, self._config.recursion
        if not second or recursion is None:
            return [rewards(first, entry)]
        return list(over_rounds(first, second, entry, discount=recursion.discount))

    def _tell(self, step: int, rows: Sequence[Row], given: Sequence[float | None]) -> None:
        drawn = [
            Drawn.of(step, self._exercises[row.exercise], row.outcome, reward, before=row.before)
            for row, reward in zip(rows, given, strict=True)
            if row.outcome
        ]
        self._told(step, drawn)
