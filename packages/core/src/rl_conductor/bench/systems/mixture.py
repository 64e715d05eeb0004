"""Mixture-of-Agents (arXiv 2406.04692, section 2): every worker proposes in every layer, then one puts it together."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_conductor.bench.arena import Arena
from rl_conductor.bench.systems.alone import best_single
from rl_conductor.bench.systems.base import Reply, System, SystemEntry
from rl_conductor.staffing import ANSWER
from rl_conductor.tasks import Sample
from rl_conductor.workflow import Step, Workflow

SYNTHESISE = """Several models have replied to the same task. Judge their replies critically, since some may be wrong \
or biased, and put them together into one better reply: correct, complete, and in the form that the task asks for."""
"""What table 1 of the paper says, in our own words."""


class MixtureOfAgents(SystemEntry):
    """All workers in every layer but the last, which is the aggregator's alone."""

    kind: Literal["mixture-of-agents"]
    layers: int = Field(default=3, ge=2)
    """3 in the paper; 2 is its `MoA-Lite`."""
    aggregator: str | None = None
    """`None` takes the best single worker."""

    async def ready(self, name: str, arena: Arena) -> list[System]:
        """The system."""
        aggregator = self.aggregator or await best_single(arena)
        plan = self.workflow(list(arena.pool), aggregator)

        async def answer(sample: Sample, repeat: int) -> Reply:
            return Reply.of(await arena.run(sample.question, repeat=repeat, workflow=plan))

        about = f"{len(arena.pool)} workers in {self.layers} layers, {aggregator} aggregates (arXiv 2406.04692)"
        return [System(name=name, about=about, identity=plan.model_dump_json(), answer=answer)]

    def workflow(self, workers: list[str], aggregator: str) -> Workflow:
        """The layers as steps: each sees all replies of the layer before it."""
        steps: list[Step] = []
        before: frozenset[int] = frozenset()
        for layer in range(self.layers):
            who = [aggregator] if layer == self.layers - 1 else workers
            subtask = SYNTHESISE if layer else ANSWER
            first = len(steps)
            steps += [Step(subtask=subtask, worker=worker, access=before) for worker in who]
            before = frozenset(range(first, len(steps)))
        return Workflow(steps=tuple(steps))
