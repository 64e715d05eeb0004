"""`Learner`: the protocol of two methods, and the lessons that every learner gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from rl_conductor.conductor import Conductor
from rl_conductor.scoring import Sample
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.experience import ScoreTable
from rl_conductor_training.learn.runner import Runner


@dataclass(frozen=True)
class Lessons:
    """The data of a learner: scores on training and validation questions, never on held-out ones."""

    table: ScoreTable
    """With the rows of production, which are of other workflows than those to choose from."""
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
    training_seconds: float
    """Expected seconds of work without any call, such as training, for the estimate."""

    async def search(self, runner: Runner, train: Sequence[Sample], validation: Sequence[Sample]) -> None:
        """Learns from runs on training questions, and selects by runs on validation questions."""


class SearchNeeds(NamedTuple):
    """The runs and the time that the learners with a search of their own need at most."""

    runs: int = 0
    """Runs with a planner."""
    seconds: float = 0.0
    """Seconds of work without any call."""

    @property
    def key(self) -> str:
        """Identifies the needs in a stored plan."""
        return f"{self.runs} {self.seconds:g}" if self.seconds else str(self.runs)

    @classmethod
    def of(cls, learners: Sequence[Learner]) -> SearchNeeds:
        """Adds up the needs of those learners that search."""
        searching = [learner for learner in learners if isinstance(learner, SearchingLearner)]
        return cls(
            sum(learner.max_runs for learner in searching), sum(learner.training_seconds for learner in searching)
        )
