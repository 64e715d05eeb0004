"""TRL's reward function: what the rows of a batch are worth, and what is told of the step. Runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from typing import Any

from rl_conductor.train.config import TrainConfig
from rl_conductor.train.diagnostics import Reference, diagnostics
from rl_conductor.train.outcomes import Drawn, Outcome
from rl_conductor.train.rewards import over_rounds, rewards
from rl_conductor.train.rollouts import Played

Told = Callable[[int, Sequence[Drawn]], None]
"""Told of each batch: the step it is for, from 1, and the plans."""


class Reward:
    """Rewards the rows of a batch, a question at a time."""

    __name__ = "reward"

    def __init__(self, config: TrainConfig, references: Mapping[str, Reference], *, told: Told) -> None:
        self._config = config
        self._references = references
        self._told = told

    def __call__(
        self, *, played: list[Played], trainer_state: Any, log_metric: Callable[[str, float], None], **_: Any
    ) -> list[float | None]:
        """The rewards of rows, which stand together by question and, within it, by round."""
        questions = [list(rows) for _, rows in groupby(played, key=lambda row: row.exercise.number)]
        first = [[row.outcome for row in rows if row.outcome and not row.before] for rows in questions]
        second = [[row.outcome for row in rows if row.before] for rows in questions]
        given = list(chain.from_iterable(map(self._rewards, first, second)))
        known = [self._references.get(rows[0].exercise.sample.id) for rows in questions]
        judged = [(row.before, row.outcome) for row in played if row.before]
        for name, value in diagnostics(first, given, known, judged=judged).items():
            log_metric(f"plans/{name}", value)
        flat = list(chain.from_iterable(given))
        if trainer_state.is_world_process_zero:
            step = trainer_state.global_step + 1
            drawn = [
                Drawn.of(step, row.exercise, row.outcome, reward, before=row.before)
                for row, reward in zip(played, flat, strict=True)
                if row.outcome
            ]
            self._told(step, drawn)
        return flat

    def _rewards(self, first: Sequence[Outcome], second: Sequence[Outcome | None]) -> list[list[float | None]]:
        """Those of each round that there was."""
        entry, recursion = self._config.reward, self._config.recursion
        if not second or recursion is None:
            return [rewards(first, entry)]
        return list(over_rounds(first, second, entry, discount=recursion.discount))
