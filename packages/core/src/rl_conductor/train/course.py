"""What one run trains on: its questions, its workers, and how their answers are judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from rl_conductor.errors import ConfigError
from rl_conductor.pool import WorkerPool
from rl_conductor.tasks.base import Task
from rl_conductor.train.config import TrainConfig
from rl_conductor.train.exercises import Exercise, exercises
from rl_conductor.train.outcomes import Examiner


@dataclass(frozen=True)
class Course:
    """A configuration and the workers that it names.

    Raises:
        ConfigError: `curriculum.cards` or `warm_start.thoughts` does not fit these workers.
    """

    config: TrainConfig
    pool: WorkerPool

    def __post_init__(self) -> None:
        thoughts = self.config.warm_start.thoughts if self.config.warm_start else {}
        self._has("curriculum.cards", self.config.curriculum.cards)
        self._has("warm_start.thoughts", thoughts)
        left_out = [name for name in self.pool if thoughts and name not in thoughts]
        if left_out:
            raise ConfigError(f"warm_start.thoughts says nothing of {', '.join(left_out)}: write what each worker does")

    def _has(self, table: str, named: Iterable[str]) -> None:
        unknown = [name for name in named if name not in self.pool]
        if unknown:
            raise ConfigError(f"{table} names {', '.join(unknown)}, but the pool has {', '.join(self.pool)}")

    @cached_property
    def task(self) -> Task:
        """Where the questions come from."""
        return self.config.task.build()

    @cached_property
    def examiner(self) -> Examiner:
        """Who says what came of a plan."""
        return Examiner(self.task.scorer, concurrency=self.config.concurrency)

    def exercises(self, size: int, **plan: int) -> list[Exercise]:
        """The first so many exercises; `plan` changes how plans are asked for."""
        return exercises(
            self.task,
            self.pool,
            plan=self.config.plan.model_copy(update=plan),
            curriculum=self.config.curriculum,
            seed=self.config.seed,
            size=size,
        )
