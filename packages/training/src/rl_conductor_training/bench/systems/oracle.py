"""The oracle: the first workflow of a list with the highest score on a sample, an upper bound for plans.

It uses the right answers. With many workflows some are right by luck, so the bound is generous. Its results count only
the usage of the chosen workflow; the usage of the search is in the total of the bench.
"""

from __future__ import annotations

import json
from typing import Literal

from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.systems.base import Reply, System
from rl_conductor_training.bench.systems.workflow_list import WorkflowList
from rl_conductor_training.tasks import Sample


class Oracle(WorkflowList):
    """Tries the workflows of a list until one is right."""

    kind: Literal["oracle"]

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Builds the search over the workflows of the list."""
        plans = self.workflows(context.pool)

        async def answer(sample: Sample, repeat: int) -> Reply:
            best, highest = Reply(text="", traces=()), -1.0
            for chain, plan in plans.items():
                reply = Reply.from_trace(await context.run(sample.question, repeat=repeat, workflow=plan), choice=chain)
                score = (await context.task.score(sample, reply.text)).value
                if score > highest:
                    best, highest = reply, score
                if score == 1:
                    break
            return best

        description = (
            f"for each question the best of {len(plans)} workflows, the first of equal ones; it knows the answers"
        )
        identity = json.dumps({chain: plan.model_dump_json() for chain, plan in plans.items()})
        return [System(name=name, description=description, identity=identity, answer=answer, sees_answers=True)]
