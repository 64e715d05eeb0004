"""The best fixed workflow and hand-written rules, as an engineer writes them in an hour, without any learning."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from statistics import fmean
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rl_conductor.errors import ConfigError
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.systems.base import Reply, System, SystemEntry
from rl_conductor_training.bench.systems.workflow_list import Role, WorkflowList, build_chain, workflow_system
from rl_conductor_training.tasks import Sample


class FixedWorkflow(WorkflowList):
    """Runs one workflow for every question: the one with the highest accuracy on the calibration samples."""

    kind: Literal["fixed"]

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Selects the workflow on the calibration samples; the first of equals, which is the shortest by default."""
        results = await self.evaluate(context)
        best = max(results, key=lambda chain: fmean(result.value for result in results[chain]))
        system = workflow_system(best, self.workflows(context.pool)[best], context)
        calibration = context.require_calibration()
        description = (
            f"{best} for every question, the best of {len(results)} workflows on {calibration.name} "
            f"(n = {len(calibration.samples)})"
        )
        return [replace(system, name=name, description=description)]


class Rule(BaseModel):
    """A regular expression, and the chain of roles for the questions that contain it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pattern: str
    chain: tuple[str, ...] = Field(min_length=1)

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return pattern


class Rules(SystemEntry):
    """Chooses the workflow of the first rule with a pattern that the question contains."""

    kind: Literal["rules"]
    roles: dict[str, Role] = Field(min_length=1)
    """Workers and their subtasks, by role."""
    rules: tuple[Rule, ...] = Field(min_length=1)
    otherwise: tuple[str, ...] = Field(min_length=1)
    """Chain of roles for all other questions."""

    @model_validator(mode="after")
    def _check_roles(self) -> Rules:
        chains = (*(rule.chain for rule in self.rules), self.otherwise)
        if unknown := sorted({role for chain in chains for role in chain} - self.roles.keys()):
            raise ValueError(f"the rules name roles that are not in roles: {', '.join(unknown)}")
        return self

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Builds the system; it learns nothing."""
        if unknown := sorted({role.worker for role in self.roles.values()} - context.pool.keys()):
            raise ConfigError(f"the roles of {name} name {', '.join(unknown)}, not in the pool")

        async def answer(sample: Sample, repeat: int) -> Reply:
            chain = self.chain_for(sample.question)
            workflow = build_chain([self.roles[role] for role in chain])
            return Reply.from_trace(
                await context.run(sample.question, repeat=repeat, workflow=workflow), choice=" → ".join(chain)
            )

        identity = json.dumps(self.model_dump(mode="json", exclude={"pools"}), sort_keys=True)
        description = f"{len(self.rules)} hand-written rules on the words of the question"
        return [System(name=name, description=description, identity=identity, answer=answer)]

    def chain_for(self, question: str) -> tuple[str, ...]:
        """Returns the chain of the first matching rule."""
        return next((rule.chain for rule in self.rules if re.search(rule.pattern, question)), self.otherwise)
