"""The oracle: for each sample, the first workflow of a list that is right. It peeks, so it bounds what plans can reach.

With many workflows on the list some are right by luck, so the bound is generous. Its row counts the chosen workflow
alone; what the search cost is in the account of the whole bench.
"""

from __future__ import annotations

import json
from itertools import permutations
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_conductor.bench.arena import Arena
from rl_conductor.bench.systems.base import Reply, System, SystemEntry
from rl_conductor.errors import ConfigError
from rl_conductor.pool import WorkerPool
from rl_conductor.tasks import Sample
from rl_conductor.workflow import Step, Workflow

ABLE = "Do what you can of the task, and give its result. What you are good at: {strengths}"
MOST = 200
"""Characters of a card that are told: subtasks are bounded."""


class Role(BaseModel):
    """What a worker is told to do in a workflow of several steps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    worker: str
    subtask: str


class Oracle(SystemEntry):
    """The best of a list of chains, in which each step sees all before it."""

    kind: Literal["oracle"]
    roles: dict[str, Role] = Field(default_factory=dict)
    """By name; without any, each worker does what its card says it is good for."""
    chains: tuple[tuple[str, ...], ...] = ()
    """Of roles, in the order in which they are tried; without any, all chains of up to `longest` different roles,
    short ones first."""
    longest: int = Field(default=3, ge=1)

    @model_validator(mode="after")
    def _knows_its_roles(self) -> Self:
        unknown = {role for chain in self.chains for role in chain} - self.roles.keys()
        if self.chains and unknown:
            raise ValueError(f"chains name roles that are not in roles: {', '.join(sorted(unknown))}")
        return self

    async def ready(self, name: str, arena: Arena) -> list[System]:
        """The system."""
        plans = self.workflows(arena.pool)

        async def answer(sample: Sample, repeat: int) -> Reply:
            shortest = None
            for chain, plan in plans.items():
                reply = Reply.of(await arena.run(sample.question, repeat=repeat, workflow=plan), choice=chain)
                score = await arena.task.score(sample, reply.text)
                if score.right:
                    return reply
                shortest = shortest or reply
            assert shortest is not None
            return shortest

        about = f"for each question the first right one of {len(plans)} workflows; it peeks"
        identity = json.dumps({chain: plan.model_dump_json() for chain, plan in plans.items()})
        return [System(name=name, about=about, identity=identity, answer=answer, peeks=True)]

    def workflows(self, pool: WorkerPool) -> dict[str, Workflow]:
        """The workflows that are tried over `pool`, by what they are called."""
        roles = self.roles or {
            worker: Role(worker=worker, subtask=ABLE.format(strengths=one.card.strengths[:MOST] or "anything"))
            for worker, one in pool.items()
        }
        strangers = {role.worker for role in roles.values()} - pool.keys()
        if strangers:
            raise ConfigError(f"the oracle's roles name {', '.join(sorted(strangers))}, not in the pool")
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
