"""The oracle: the first workflow of a list that answers a sample correctly, an upper bound for plans.

It uses the right answers. With many workflows some are right by luck, so the bound is generous. Its results count only
the usage of the chosen workflow; the usage of the search is in the total of the bench.
"""

from __future__ import annotations

import json
from itertools import permutations
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.workflow.workflow import Step, Workflow
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.systems.base import Reply, System, SystemEntry
from rl_conductor_training.tasks import Sample

ABLE = "Do what you can of the task, and give its result. What you are good at: {strengths}"
MAX_STRENGTHS_CHARS = 200
"""Maximum length of a card's strengths in the subtask, because subtasks have a maximum length."""


class Role(BaseModel):
    """A worker and its subtask in a workflow."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    worker: str
    subtask: str


class Oracle(SystemEntry):
    """Tries a list of chains, in which each step reads all earlier ones."""

    kind: Literal["oracle"]
    roles: dict[str, Role] = Field(default_factory=dict)
    """Roles by name; by default one role per worker, with the strengths of its card as subtask."""
    chains: tuple[tuple[str, ...], ...] = ()
    """Chains of roles in the order to try them; by default all chains of up to `longest` different roles, short ones
    first."""
    longest: int = Field(default=3, ge=1)

    @model_validator(mode="after")
    def _check_roles(self) -> Self:
        unknown = {role for chain in self.chains for role in chain} - self.roles.keys()
        if self.chains and unknown:
            raise ValueError(f"chains name roles that are not in roles: {', '.join(sorted(unknown))}")
        return self

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Builds the search over the workflows of the list."""
        plans = self.workflows(context.pool)

        async def answer(sample: Sample, repeat: int) -> Reply:
            first_reply = None
            for chain, plan in plans.items():
                reply = Reply.from_trace(await context.run(sample.question, repeat=repeat, workflow=plan), choice=chain)
                score = await context.task.score(sample, reply.text)
                if score.right:
                    return reply
                first_reply = first_reply or reply
            assert first_reply is not None
            return first_reply

        description = f"for each question the first right one of {len(plans)} workflows; it knows the answers"
        identity = json.dumps({chain: plan.model_dump_json() for chain, plan in plans.items()})
        return [System(name=name, description=description, identity=identity, answer=answer, sees_answers=True)]

    def workflows(self, pool: WorkerPool) -> dict[str, Workflow]:
        """Builds the workflows to try over `pool`, by name."""
        roles = self.roles or {
            worker: Role(
                worker=worker, subtask=ABLE.format(strengths=entry.card.strengths[:MAX_STRENGTHS_CHARS] or "anything")
            )
            for worker, entry in pool.items()
        }
        unknown = {role.worker for role in roles.values()} - pool.keys()
        if unknown:
            raise ConfigError(f"the oracle's roles name {', '.join(sorted(unknown))}, not in the pool")
        chains = self.chains or [
            chain for length in range(1, self.longest + 1) for chain in permutations(roles, length)
        ]
        return {" → ".join(chain): _chain([roles[role] for role in chain]) for chain in chains}


def _chain(roles: list[Role]) -> Workflow:
    return Workflow(
        steps=tuple(
            Step(subtask=role.subtask, worker=role.worker, access=frozenset(range(index)))
            for index, role in enumerate(roles)
        )
    )
