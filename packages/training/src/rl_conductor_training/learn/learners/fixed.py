"""`BestWorkflow`, `BestWorker` and `CheapestWorker`: one workflow for every question."""

from __future__ import annotations

from rl_conductor.conductor import Conductor
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.evaluation.gate import best_workflow, cheapest_worker
from rl_conductor_training.learn.learners.base import Learner, Lessons


class BestWorkflow(Learner):
    """Selects the workflow with the most right answers."""

    name = "best fixed"

    def __init__(self) -> None:
        self.workflow: Workflow | None = None

    def fit(self, lessons: Lessons) -> None:
        """Selects the workflow; of equally good ones the cheapest."""
        self.workflow = best_workflow(lessons.table, [*lessons.singles, *lessons.workflows])

    def apply(self, conductor: Conductor) -> Conductor:
        """Returns a copy that runs the workflow for every request."""
        assert self.workflow is not None, "fit comes first"
        return conductor.replaced(selector=WorkflowSelector(workflows=(self.workflow,)))


class BestWorker(BestWorkflow):
    """Selects the single worker with the most right answers."""

    name = "best single"

    def fit(self, lessons: Lessons) -> None:
        """Selects the worker; of equally good ones the cheapest."""
        self.workflow = best_workflow(lessons.table, lessons.singles)


class CheapestWorker(BestWorkflow):
    """Selects the cheapest of the workers that answer nearly as many questions as the best one."""

    name = "cheapest single"

    def fit(self, lessons: Lessons) -> None:
        """Selects the worker, or the best one if none costs less."""
        cheapest = cheapest_worker(lessons.table, lessons.singles)
        self.workflow = cheapest or best_workflow(lessons.table, lessons.singles)
