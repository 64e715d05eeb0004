"""What single calls of a worker came to: on a task with a verifier, or in runs that a Conductor has judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rl_conductor.bench.rows import Row
from rl_conductor.prompts import prompt_in
from rl_conductor.tasks import Sample
from rl_conductor.trace import Trace
from rl_conductor.types import Message, Request


@dataclass(frozen=True)
class Example:
    """A request, and whether one call of the worker answered it."""

    request: Request
    right: bool

    @property
    def message(self) -> str:
        """What the user said last."""
        return prompt_in(self.request.messages)


def of_rows(samples: Sequence[Sample], rows: Sequence[Row]) -> list[Example]:
    """What a worker alone made of a task; no answer is a wrong one."""
    value = {row.key.sample: row.value for row in rows}
    return [
        Example(Request(messages=(Message.user(sample.question),)), value[sample.id] == 1)
        for sample in samples
        if sample.id in value
    ]


class Judged:
    """What runs of a Conductor say of single calls, as they come.

    A plan of one step whose answer the Conductor accepted in the round after counts as right for the step's worker; one
    that it planned anew for counts as wrong. A request that it gave to several steps counts as wrong for each worker:
    the Conductor did not trust a single call with it. All other runs say nothing.
    """

    def __init__(self) -> None:
        self._hard: list[Request] = []
        self._single: dict[tuple[str, str], list[Example]] = {}
        self.silent = 0
        """Runs that say nothing."""

    def add(self, trace: Trace) -> None:
        """The next run."""
        planned = trace.rounds[0].plan if trace.rounds else None
        if planned is None or planned.source != "planner" or planned.workflow is None or trace.setup is None:
            self.silent += 1
        elif len(planned.workflow.steps) > 1:
            self._hard.append(trace.request)
        elif len(trace.rounds) > 1 and trace.rounds[1].plan.source == "planner":
            who = planned.workflow.steps[0].worker
            model = next(one.model for one in trace.setup.workers if one.card.name == who)
            example = Example(trace.request, trace.rounds[1].plan.workflow is None)
            self._single.setdefault((who, model), []).append(example)
        else:
            self.silent += 1

    def examples(self, worker: str, model: str) -> list[Example]:
        """What they say of this worker as it is now."""
        return [*self._single.get((worker, model), ()), *(Example(request, right=False) for request in self._hard)]

    @property
    def busiest(self) -> str | None:
        """The worker whose single calls were accepted most often."""
        accepted = Counter(who for (who, _), each in self._single.items() for example in each if example.right)
        return accepted.most_common(1)[0][0] if accepted else None
