"""Self-reflection: one worker revises its own answer repeatedly (arXiv 2512.04388, table 7: five turns)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_conductor.prompting.subtasks import ANSWER, VERIFY
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.systems.base import Reply, System, SystemEntry
from rl_conductor_training.bench.systems.single_model import select_best_worker
from rl_conductor_training.tasks import Sample


class SelfReflection(SystemEntry):
    """Chains steps of one worker: it answers, then checks and corrects its answer."""

    kind: Literal["self-reflection"]
    worker: str | None = None
    """`None` selects the best single worker."""
    turns: int = Field(default=5, ge=2)

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Builds the workflow of one worker."""
        worker = self.worker or await select_best_worker(context)
        plan = Workflow.chain((worker, ANSWER), *[(worker, VERIFY)] * (self.turns - 1))

        async def answer(sample: Sample, repeat: int) -> Reply:
            return Reply.from_trace(await context.run(sample.question, repeat=repeat, workflow=plan))

        description = f"{worker} answers and corrects itself, {self.turns} turns (arXiv 2512.04388, table 7)"
        return [System(name=name, description=description, identity=plan.model_dump_json(), answer=answer)]
