"""The questions, workers and scorer of one training run, and its checks before torch is imported."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.scoring import Sample, Task
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.cut_off_replies import Finishes
from rl_conductor_training.spending import CostEstimate, check_prices
from rl_conductor_training.tasks import TaskEntry
from rl_conductor_training.tasks.groups import check_answers, count_different, shared_questions
from rl_conductor_training.train.budget import TrainingBudget
from rl_conductor_training.train.config import Reporter, TrainConfig
from rl_conductor_training.train.estimate import estimate_training
from rl_conductor_training.train.progress import TrainProgress
from rl_conductor_training.train.prompt_instances import PromptInstance, build_instances
from rl_conductor_training.train.rollouts.scoring import RolloutScorer, ScoredPlan
from rl_conductor_training.train.run_dir import RunDir

log = logging.getLogger("rl_conductor_training.train")


@dataclass(frozen=True)
class TrainingSetup:
    """A training configuration with its opened worker pool.

    Raises:
        ConfigError: `curriculum.cards` or `warm_start.roles` does not match the pool's workers.
    """

    config: TrainConfig
    pool: WorkerPool
    budget: TrainingBudget = field(default_factory=lambda: TrainingBudget(Limits()))
    """The caps on the calls to workers."""
    progress: TrainProgress = field(default_factory=TrainProgress)
    masked_reasons: list[str] = field(default_factory=list)
    """The reason of each plan that was masked until now."""
    finishes: list[Finishes] = field(default_factory=list)
    """The replies in each plan until now, by worker and by why they ended."""

    def __post_init__(self) -> None:
        roles = self.config.warm_start.roles if self.config.warm_start else {}
        self._check_workers("curriculum.cards", self.config.curriculum.cards)
        self._check_workers("warm_start.roles", roles)
        missing = [name for name in self.pool if roles and name not in roles]
        if missing:
            raise ConfigError(f"warm_start.roles has no entry for {', '.join(missing)}: write one for each worker")

    def _check_workers(self, table: str, workers: Iterable[str]) -> None:
        unknown = [name for name in workers if name not in self.pool]
        if unknown:
            raise ConfigError(f"{table} names {', '.join(unknown)}, but the pool has {', '.join(self.pool)}")

    @cached_property
    def task(self) -> Task:
        """The task of the configuration, with its samples and its scorer.

        Raises:
            ConfigError: a question has two answers.
        """
        return _build_task(self.config.task)

    @cached_property
    def validation_task(self) -> Task | None:
        """The validation task, with a scorer of its own; `None` without validation.

        Raises:
            ConfigError: a question has two answers.
        """
        return None if self.config.validation is None else _build_task(self.config.validation.task)

    @cached_property
    def validation_instances(self) -> list[PromptInstance]:
        """The validation questions, each with its pool and prompt, the same for all evaluations.

        Raises:
            ConfigError: one of them is a training question.
        """
        task = self.validation_task
        if task is None:
            return []
        if shared := shared_questions(task.samples, self.task.samples):
            raise ConfigError(
                f"validation.task has {len(shared)} of the training questions, such as {shared[0]!r:.80}: choose"
                " another split or seed"
            )
        return self._build_instances(task, len(task.samples))

    def load_questions(self) -> tuple[list[Sample], list[Sample]]:
        """Returns the training questions and the validation questions.

        Raises:
            ConfigError: a question has two answers, or is in both.
        """
        return list(self.task.samples), [instance.sample for instance in self.validation_instances]

    def warn_of_copies(self) -> None:
        """Logs how many different questions a task has that has some of them more than once."""
        for name, task in (("task", self.task), ("validation.task", self.validation_task)):
            size = len(task.samples) if task else 0
            if task and (different := count_different(task.samples)) < size:
                log.warning("%s has %d questions, but only %d different ones: each copy counts", name, size, different)

    def estimate(self) -> CostEstimate:
        """Estimates the cost of the whole run."""
        count = len(self.validation_instances)
        return estimate_training(self.config, self.pool, self.task.samples, validation_questions=count)

    @cached_property
    def rollout_scorer(self) -> RolloutScorer:
        """Executes plans and scores their answers by the task."""
        return self._build_scorer(self.task)

    @cached_property
    def validation_scorer(self) -> RolloutScorer:
        """Executes plans and scores their answers by the validation task, which must exist."""
        assert self.validation_task is not None
        return self._build_scorer(self.validation_task)

    def _build_scorer(self, task: Task) -> RolloutScorer:
        return RolloutScorer(
            task.score,
            concurrency=self.config.concurrency,
            budget=self.budget,
            on_plan=self._add_plan,
        )

    def _add_plan(self, scored: ScoredPlan) -> None:
        if scored.masked:
            self.masked_reasons.append(scored.explanation)
        self.finishes.append(scored.finishes)
        self.progress.advance()

    def prompt_instances(self, size: int, **plan: int) -> list[PromptInstance]:
        """Builds the first `size` prompt instances of the run; `plan` overrides settings of `[plan]`."""
        return self._build_instances(self.task, size, **plan)

    def _build_instances(self, task: Task, size: int, **plan: int) -> list[PromptInstance]:
        return build_instances(
            task,
            self.pool,
            plan=self.config.plan.model_copy(update=plan),
            curriculum=self.config.curriculum,
            seed=self.config.seed,
            size=size,
        )


def _build_task(entry: TaskEntry) -> Task:
    task = entry.build()
    check_answers(task)
    return task


def check_run(config: TrainConfig, output: Path, pool: WorkerPool, limits: Limits) -> None:
    """Checks a run before torch is imported, which takes many seconds. Nothing is called or written.

    Raises:
        ConfigError: the trackers, the run directory, the workers or the questions can't be used.
    """
    check_trackers(config.keep.report_to)
    run_dir = RunDir(output)
    run_dir.ensure_same_config(config)
    run_dir.ensure_same_workers(pool, config.pool.reply_options)
    check_prices(pool, limits)
    run_dir.ensure_same_questions(*TrainingSetup(config, pool).load_questions())


def check_trackers(trackers: Iterable[Reporter]) -> None:
    """Checks that the packages of experiment trackers are installed.

    Raises:
        ConfigError: one is not.
    """
    for name in trackers:
        if find_spec(name) is None:
            raise ConfigError(f"reporting to {name} needs its package: pip install {name}")
