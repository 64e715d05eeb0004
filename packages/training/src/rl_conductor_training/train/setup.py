"""The questions, workers and scorer of one training run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.scoring import Task
from rl_conductor_training.train.config import TrainConfig
from rl_conductor_training.train.prompt_instances import PromptInstance, build_instances
from rl_conductor_training.train.rollouts.scoring import RolloutScorer


@dataclass(frozen=True)
class TrainingSetup:
    """A training configuration with its opened worker pool.

    Raises:
        ConfigError: `curriculum.cards` or `warm_start.thoughts` does not match the pool's workers.
    """

    config: TrainConfig
    pool: WorkerPool

    def __post_init__(self) -> None:
        thoughts = self.config.warm_start.thoughts if self.config.warm_start else {}
        self._check_workers("curriculum.cards", self.config.curriculum.cards)
        self._check_workers("warm_start.thoughts", thoughts)
        missing = [name for name in self.pool if thoughts and name not in thoughts]
        if missing:
            raise ConfigError(f"warm_start.thoughts has no entry for {', '.join(missing)}: write one for each worker")

    def _check_workers(self, table: str, workers: Iterable[str]) -> None:
        unknown = [name for name in workers if name not in self.pool]
        if unknown:
            raise ConfigError(f"{table} names {', '.join(unknown)}, but the pool has {', '.join(self.pool)}")

    @cached_property
    def task(self) -> Task:
        """The task of the configuration, with its samples and its scorer."""
        return self.config.task.build()

    @cached_property
    def rollout_scorer(self) -> RolloutScorer:
        """Executes plans and scores their answers by the task."""
        return RolloutScorer(self.task.scorer, concurrency=self.config.concurrency)

    def prompt_instances(self, size: int, **plan: int) -> list[PromptInstance]:
        """Builds the first `size` prompt instances of the run; `plan` overrides settings of `[plan]`."""
        return build_instances(
            self.task,
            self.pool,
            plan=self.config.plan.model_copy(update=plan),
            curriculum=self.config.curriculum,
            seed=self.config.seed,
            size=size,
        )
