"""`LinearSelector`: a logistic regression on the words of the question that picks among the good workflows."""

from __future__ import annotations

from rl_conductor.conductor import Conductor
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor_training.learn.learners.base import Learner, Lessons
from rl_conductor_training.routing.selector import train_selector


class LinearSelector(Learner):
    """Learns which workflow answers which kind of question."""

    name = "linear"

    def __init__(self) -> None:
        self.selector: WorkflowSelector | None = None

    def fit(self, lessons: Lessons) -> None:
        """Trains one classifier for each workflow."""
        table, workflows = lessons.table, list(dict.fromkeys([*lessons.singles, *lessons.workflows]))
        workflows.sort(key=lambda workflow: (table.cost_order(workflow), len(workflow.steps)))
        best = [{row.workflow for row in table.best_rows(sample)} for sample in table.samples]
        is_best = [[workflow in names for names in best] for workflow in workflows]
        self.selector = train_selector([sample.question for sample in table.samples], workflows, is_best)

    def apply(self, conductor: Conductor) -> Conductor:
        """Returns a copy that selects a workflow for each request."""
        assert self.selector is not None, "fit comes first"
        return conductor.replaced(selector=self.selector)
