"""Mixture-of-Agents (arXiv 2406.04692, section 2): layers of proposals by all workers, then one aggregator."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_conductor.prompting.subtasks import ANSWER
from rl_conductor.workflow.workflow import Step, Workflow
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.systems.base import Reply, System, SystemEntry
from rl_conductor_training.bench.systems.single_model import select_best_worker
from rl_conductor_training.tasks import Sample

SYNTHESISE = """Several models have replied to the same task. Judge their replies critically, since some may be wrong \
or biased, and put them together into one better reply: correct, complete, and in the form that the task asks for."""
"""Prompt of the aggregator and of later layers, paraphrased from table 1 of the paper."""


class MixtureOfAgents(SystemEntry):
    """Runs all workers in every layer but the last, which is the aggregator's."""

    kind: Literal["mixture-of-agents"]
    layers: int = Field(default=3, ge=2)
    """3 in the paper; 2 is its `MoA-Lite`."""
    aggregator: str | None = None
    """`None` selects the best single worker."""

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Builds the layered workflow over the whole pool."""
        aggregator = self.aggregator or await select_best_worker(context)
        plan = self.workflow(list(context.pool), aggregator)

        async def answer(sample: Sample, repeat: int) -> Reply:
            return Reply.from_trace(await context.run(sample.question, repeat=repeat, workflow=plan))

        description = f"{len(context.pool)} workers in {self.layers} layers, {aggregator} aggregates (arXiv 2406.04692)"
        return [System(name=name, description=description, identity=plan.model_dump_json(), answer=answer)]

    def workflow(self, workers: list[str], aggregator: str) -> Workflow:
        """Builds the layers as steps, each of which reads all replies of the previous layer."""
        steps: list[Step] = []
        previous_layer: frozenset[int] = frozenset()
        for layer in range(self.layers):
            layer_workers = [aggregator] if layer == self.layers - 1 else workers
            subtask = SYNTHESISE if layer else ANSWER
            layer_start = len(steps)
            steps += [Step(subtask=subtask, worker=worker, access=previous_layer) for worker in layer_workers]
            previous_layer = frozenset(range(layer_start, len(steps)))
        return Workflow(steps=tuple(steps))
