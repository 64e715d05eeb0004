"""Random plans: what any plan is worth, so that a Conductor's choice can be told from luck."""

from __future__ import annotations

import random
from typing import Literal

from pydantic import Field

from rl_conductor.bench.arena import Arena
from rl_conductor.bench.systems.base import PART, Reply, System, SystemEntry
from rl_conductor.staffing import ANSWER
from rl_conductor.tasks import Sample
from rl_conductor.workflow import Step, Workflow


class RandomPlans(SystemEntry):
    """Any number of steps is as likely as any other, and so are workers and access within that number."""

    kind: Literal["random"]
    steps: int = Field(default=5, ge=1)

    async def ready(self, name: str, arena: Arena) -> list[System]:
        """The system."""
        workers = list(arena.pool)

        async def answer(sample: Sample, repeat: int) -> Reply:
            draw = random.Random(f"{arena.seed} {sample.id} {repeat}")  # noqa: S311
            plan = drawn(workers, self.steps, draw)
            return Reply.of(await arena.run(sample.question, repeat=repeat, workflow=plan))

        about = f"random workers and access, 1 to {self.steps} steps, each length equally likely"
        identity = f"{self.identity} {PART} {ANSWER}"
        return [System(name=name, about=about, identity=identity, answer=answer)]


def drawn(workers: list[str], most: int, draw: random.Random) -> Workflow:
    """A plan with binary access, as the paper's Conductor may write."""
    count = draw.randint(1, most)
    return Workflow(
        steps=tuple(
            Step(
                subtask=ANSWER if index == count - 1 else PART,
                worker=draw.choice(workers),
                access=frozenset(range(index)) if draw.random() < 0.5 else frozenset(),
            )
            for index in range(count)
        )
    )
