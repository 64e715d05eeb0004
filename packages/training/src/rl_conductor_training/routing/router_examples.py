"""Training examples of the router: requests labelled by whether one call of a worker answered them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rl_conductor.trace.trace import Trace
from rl_conductor.types import Request, prompt_in
from rl_conductor_training.tasks import Sample


@dataclass(frozen=True)
class RouterExample:
    """A request, and whether one call of the worker answered it."""

    request: Request
    right: bool

    @property
    def message(self) -> str:
        """The text of the last user message."""
        return prompt_in(self.request.messages)


def examples_from_scores(samples: Sequence[Sample], scores: Mapping[str, float]) -> list[RouterExample]:
    """Labels the samples of a task by a worker's scores, by id of the sample; a missing answer counts as wrong."""
    return [
        RouterExample(Request.user(sample.question), scores[sample.id] == 1)
        for sample in samples
        if sample.id in scores
    ]


class TraceExamples:
    """Labels requests by the traces of a Conductor.

    A plan of one step is right for its worker if the Conductor accepted its answer in the next round, and wrong if it
    planned again. A plan of several steps is wrong for every worker, because the Conductor did not trust a single call
    with the request. Other runs are skipped.
    """

    def __init__(self) -> None:
        self._multi_step_requests: list[Request] = []
        self._single_step: dict[tuple[str, str], list[RouterExample]] = {}
        self.skipped = 0
        """Number of runs that give no label."""

    def add_trace(self, trace: Trace) -> None:
        """Labels the request of a run."""
        plan = trace.rounds[0].plan if trace.rounds else None
        if plan is None or plan.source != "planner" or plan.workflow is None or trace.setup is None:
            self.skipped += 1
        elif len(plan.workflow.steps) > 1:
            self._multi_step_requests.append(trace.request)
        elif len(trace.rounds) > 1 and trace.rounds[1].plan.source == "planner":
            worker = plan.workflow.steps[0].worker
            model = next(entry.model for entry in trace.setup.workers if entry.card.name == worker)
            example = RouterExample(trace.request, trace.rounds[1].plan.workflow is None)
            self._single_step.setdefault((worker, model), []).append(example)
        else:
            self.skipped += 1

    def examples(self, worker: str, model: str) -> list[RouterExample]:
        """Returns the examples for a worker with this model."""
        multi_step = (RouterExample(request, right=False) for request in self._multi_step_requests)
        return [*self._single_step.get((worker, model), ()), *multi_step]

    @property
    def most_accepted_worker(self) -> str | None:
        """The worker with the most accepted single calls."""
        accepted = Counter(
            worker for (worker, _), examples in self._single_step.items() for example in examples if example.right
        )
        return accepted.most_common(1)[0][0] if accepted else None
