"""`LearnSettings`: the settings of a learning run other than the task, the pool and the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rl_conductor_training.learn.learners.base import Learner
from rl_conductor_training.learn.learners.examples import NearestExamples
from rl_conductor_training.learn.learners.fixed import BestWorker, BestWorkflow
from rl_conductor_training.learn.learners.linear import LinearSelector


@dataclass(frozen=True, kw_only=True)
class LearnSettings:
    """Settings of a learning run other than the task, the pool and the budget."""

    seed: int = 0
    """Splits the questions and orders the search."""
    concurrency: int = 4
    """Maximum questions at the same time."""
    max_steps: int = 3
    """Maximum steps of a workflow."""
    requires_room: bool = True
    """Whether learners that choose a workflow or call a planner are compared only where the gate shows room."""
    learners: tuple[Callable[[], Learner], ...] = (BestWorker, BestWorkflow, LinearSelector, NearestExamples)
    """Creates the learners to compare; the first two are the baselines."""
