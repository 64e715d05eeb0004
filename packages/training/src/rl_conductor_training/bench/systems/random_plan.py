"""Random plans: the baseline that separates a Conductor's choices from luck."""

from __future__ import annotations

import random
from typing import Literal

from pydantic import Field

from rl_conductor.prompting.subtasks import ANSWER
from rl_conductor.workflow.workflow import Step, Workflow
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.systems.base import PART, Reply, System, SystemEntry
from rl_conductor_training.tasks import Sample


class RandomPlan(SystemEntry):
    """Draws the number of steps, then workers and access, each uniformly at random."""

    kind: Literal["random"]
    steps: int = Field(default=5, ge=1)

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Builds the system over all workers of the pool."""
        workers = list(context.pool)

        async def answer(sample: Sample, repeat: int) -> Reply:
            generator = random.Random(f"{context.seed} {sample.id} {repeat}")  # noqa: S311
            plan = draw_plan(workers, self.steps, generator)
            return Reply.from_trace(await context.run(sample.question, repeat=repeat, workflow=plan))

        description = f"random workers and access, 1 to {self.steps} steps, each length equally likely"
        identity = f"{self.identity} {PART} {ANSWER}"
        return [System(name=name, description=description, identity=identity, answer=answer)]


def draw_plan(workers: list[str], max_steps: int, generator: random.Random) -> Workflow:
    """Draws a plan with binary access, the mode of the paper."""
    count = generator.randint(1, max_steps)
    return Workflow(
        steps=tuple(
            Step(
                subtask=ANSWER if index == count - 1 else PART,
                worker=generator.choice(workers),
                access=frozenset(range(index)) if generator.random() < 0.5 else frozenset(),
            )
            for index in range(count)
        )
    )
