"""A linear classifier on the words of the question that picks among fixed workflows, without a planner."""

from __future__ import annotations

from itertools import chain
from typing import Literal

from rl_conductor.types import Request
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.results import fingerprint_results
from rl_conductor_training.bench.systems.base import Reply, System
from rl_conductor_training.bench.systems.workflow_list import WorkflowList
from rl_conductor_training.routing.selector import train_selector
from rl_conductor_training.row_file import fingerprint
from rl_conductor_training.tasks import Sample


class Linear(WorkflowList):
    """Learns from the calibration samples which workflow of a list answers which kind of question."""

    kind: Literal["linear"]

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Trains the classifier; earlier workflows of the list are preferred where several are right."""
        results = await self.evaluate(context)
        workflows = self.workflows(context.pool)
        calibration = context.require_calibration()
        selector = train_selector(
            [sample.question for sample in calibration.samples],
            list(workflows.values()),
            [[result.value == 1 for result in results[chain]] for chain in workflows],
        )
        chains = {workflow: chain for chain, workflow in workflows.items()}

        async def answer(sample: Sample, repeat: int) -> Reply:
            workflow = selector.select(Request.user(sample.question))
            trace = await context.run(sample.question, repeat=repeat, workflow=workflow)
            return Reply.from_trace(trace, choice=chains[workflow])

        description = (
            f"a linear classifier that picks one of {len(workflows)} workflows, learned on {calibration.name} "
            f"(n = {len(calibration.samples)})"
        )
        identity = fingerprint("linear", *chains.values(), fingerprint_results(chain.from_iterable(results.values())))
        return [System(name=name, description=description, identity=identity, answer=answer)]
