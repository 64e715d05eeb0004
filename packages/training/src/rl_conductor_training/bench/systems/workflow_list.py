"""`WorkflowList`: a list of chains of workers, for systems that choose among fixed workflows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.results import SampleResult
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


class WorkflowList(SystemEntry):
    """Settings of a list of chains, in which each step reads all earlier ones."""

    kind: str
    roles: dict[str, Role] = Field(default_factory=dict)
    """Roles by name; by default one role per worker, with the strengths of its card as subtask."""
    chains: tuple[tuple[str, ...], ...] = ()
    """Chains of roles, of which the first wins a tie; by default all chains of up to `max_steps` different roles, short
    ones first."""
    max_steps: int = Field(default=3, ge=1)

    @model_validator(mode="after")
    def _check_roles(self) -> Self:
        unknown = {role for chain in self.chains for role in chain} - self.roles.keys()
        if self.chains and unknown:
            raise ValueError(f"chains name roles that are not in roles: {', '.join(sorted(unknown))}")
        return self

    def workflows(self, pool: WorkerPool) -> dict[str, Workflow]:
        """Builds the workflows over `pool`, by name."""
        roles = self.roles or {
            worker: Role(
                worker=worker, subtask=ABLE.format(strengths=entry.card.strengths[:MAX_STRENGTHS_CHARS] or "anything")
            )
            for worker, entry in pool.items()
        }
        unknown = {role.worker for role in roles.values()} - pool.keys()
        if unknown:
            raise ConfigError(f"the roles of a {self.kind} system name {', '.join(sorted(unknown))}, not in the pool")
        chains = self.chains or [
            chain for length in range(1, self.max_steps + 1) for chain in permutations(roles, length)
        ]
        return {" → ".join(chain): build_chain([roles[role] for role in chain]) for chain in chains}

    async def evaluate(self, context: BenchContext) -> dict[str, list[SampleResult]]:
        """Returns the results of each workflow on the calibration samples; raises like `BenchContext.evaluate`."""
        workflows = self.workflows(context.pool).items()
        return await context.evaluate(workflow_system(name, workflow, context) for name, workflow in workflows)


def workflow_system(name: str, workflow: Workflow, context: BenchContext) -> System:
    """Builds the system that runs one workflow for every question."""

    async def answer(sample: Sample, repeat: int) -> Reply:
        return Reply.from_trace(await context.run(sample.question, repeat=repeat, workflow=workflow), choice=name)

    return System(
        name=name,
        description=f"the workflow {name} for every question",
        identity=f"workflow {workflow.model_dump_json()}",
        answer=answer,
    )


def build_chain(roles: Sequence[Role]) -> Workflow:
    """Builds the workflow in which each role does a step and reads all earlier ones."""
    return Workflow.chain(*((role.worker, role.subtask) for role in roles))
