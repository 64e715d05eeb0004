"""`NearestExamples`: the best plans for similar questions as demonstrations in the planner's prompt."""

from __future__ import annotations

from dataclasses import replace

from rl_conductor.conductor import Conductor
from rl_conductor.workflow.example import PlanExample
from rl_conductor_training.learn.learners.base import Learner, Lessons


class NearestExamples(Learner):
    """Gives the planner the cheapest of the best plans of each question; its prompt shows those of the nearest ones."""

    name = "examples"
    description = "planner with right plans as examples"

    def __init__(self) -> None:
        self.examples: tuple[PlanExample, ...] = ()

    def fit(self, lessons: Lessons) -> None:
        table = lessons.table
        rows = [rows[0] for sample in table.samples if (rows := table.best_rows(sample))]
        self.examples = tuple(
            PlanExample(question=row.question, workflow=row.workflow) for row in rows if row.workflow is not None
        )

    def apply(self, conductor: Conductor) -> Conductor:
        """Returns a copy with a planner that is shown the examples."""
        return conductor.replaced(planner=replace(conductor.planner, examples=self.examples or 3))
