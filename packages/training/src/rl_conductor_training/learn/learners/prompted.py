"""`PromptedPlanner`: the planner as it is, which the learned systems are compared with."""

from __future__ import annotations

from rl_conductor.conductor import Conductor
from rl_conductor_training.learn.evaluation.comparison import PROMPTED
from rl_conductor_training.learn.learners.base import Learner, Lessons


class PromptedPlanner(Learner):
    """The planner without any learning."""

    name = PROMPTED

    def __init__(self, conductor: Conductor) -> None:
        self.description = f"plans of {conductor.planner.model.name}"

    def fit(self, lessons: Lessons) -> None:
        """Does nothing, because the planner stays as it is."""

    def apply(self, conductor: Conductor) -> Conductor:
        """Returns the conductor itself."""
        return conductor
