"""`Learner`: the base class of two methods, and the lessons that every learner gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rl_conductor.conductor import Conductor
from rl_conductor.pool.pool_file import PlannerEntry
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


class Learner(ABC):
    """Learns from experience, and changes a conductor accordingly."""

    name: str
    description: str = "planner"
    """The kind of planner, for the table of the proof."""
    instructions: str = ""
    """Instructions that the folder stores, which follow the planner's own."""
    descriptions: Mapping[str, str] | None = None
    """Descriptions of workers that the folder stores, as far as they were changed."""
    planner_entry: PlannerEntry | None = None
    """A trained planner as the folder stores it."""

    @abstractmethod
    def fit(self, lessons: Lessons) -> None:
        """Learns from the scores."""

    @abstractmethod
    def apply(self, conductor: Conductor) -> Conductor:
        """Returns a copy of `conductor` that plans as learned; the folder stores its `selector` and examples."""


class SearchingLearner(Learner):
    """A learner that runs conductors of its own within the budget, before the held-out questions are opened."""

    max_runs: int = 0
    """Maximum number of runs with a planner, for the estimate."""
    training_seconds: float = 0.0
    """Expected seconds of work without any call, such as training, for the estimate."""

    def fit(self, lessons: Lessons) -> None:
        """Does nothing: `search` learns."""

    @abstractmethod
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
