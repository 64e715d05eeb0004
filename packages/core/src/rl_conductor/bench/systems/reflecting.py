"""Self-reflection: one worker looks at its own answer again and again (arXiv 2512.04388, table 7: five turns)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_conductor.bench.arena import Arena
from rl_conductor.bench.systems.alone import best_single
from rl_conductor.bench.systems.base import Reply, System, SystemEntry
from rl_conductor.staffing import ANSWER, VERIFY
from rl_conductor.tasks import Sample
from rl_conductor.workflow import Step, Workflow


class SelfReflection(SystemEntry):
    """A chain of steps by one worker: it answers, then checks and corrects what it said."""

    kind: Literal["self-reflection"]
    worker: str | None = None
    """`None` takes the best single one."""
    turns: int = Field(default=5, ge=2)

    async def ready(self, name: str, arena: Arena) -> list[System]:
        """The system."""
        worker = self.worker or await best_single(arena)
        steps = [Step(subtask=ANSWER, worker=worker)]
        steps += [Step(subtask=VERIFY, worker=worker, access=frozenset(range(index))) for index in range(1, self.turns)]
        plan = Workflow(steps=tuple(steps))

        async def answer(sample: Sample, repeat: int) -> Reply:
            return Reply.of(await arena.run(sample.question, repeat=repeat, workflow=plan))

        about = f"{worker} answers and corrects itself, {self.turns} turns (arXiv 2512.04388, table 7)"
        return [System(name=name, about=about, identity=plan.model_dump_json(), answer=answer)]
