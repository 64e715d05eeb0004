"""`Learner`: the protocol of two methods, and the lessons that every learner gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rl_conductor.conductor import Conductor
from rl_conductor.scoring import Sample
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.experience import ScoreTable
from rl_conductor_training.learn.runner import Runner


@dataclass(frozen=True)
class Lessons:
    """The data of a learner: scores on training and validation questions, never on held-out ones."""

    table: ScoreTable
    workflows: Sequence[Workflow]
    """The workflows to choose from; each of them ran on every question."""
    singles: Sequence[Workflow]
    """The workflows of single workers."""


class Learner(Protocol):
    """Learns from experience, and changes a conductor accordingly."""

    name: str

    def fit(self, lessons: Lessons) -> None:
        """Learns from the scores."""

    def apply(self, conductor: Conductor) -> Conductor:
        """Returns a copy of `conductor` that plans as learned; its `selector` and `planner` are saved in the folder."""


@runtime_checkable
class SearchingLearner(Protocol):
    """A learner that runs conductors of its own within the budget, before the held-out questions are opened."""

    max_runs: int
    """Maximum number of runs with a planner, for the estimate."""

    async def search(self, runner: Runner, train: Sequence[Sample], validation: Sequence[Sample]) -> None:
        """Learns from runs on training questions, and selects by runs on validation questions."""
