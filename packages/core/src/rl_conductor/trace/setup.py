"""The configuration of a conductor in a trace, from which a replay makes the same requests. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_conductor.models.base import Capabilities
from rl_conductor.plan_text.forms import Form
from rl_conductor.types import Card, Names, Roster, Sampling, Value, Wording
from rl_conductor.workflow.example import PlanExample
from rl_conductor.workflow.plan_space import AccessMode


class Versions(Value):
    """Versions of the package and of the prompts."""

    package: str
    prompt: str
    """A hash of all prompt templates; see `prompt_version`."""


class WorkerSetup(Value):
    """The configuration of one worker of the pool."""

    card: Card
    model: str
    """Its model, as `provider:name`."""
    can: Names
    """Names of the capabilities of its model."""
    context: int | None = None
    """Maximum tokens of prompt and reply together, if known."""
    sampling: Sampling
    instructions: str = ""
    """The worker's own instructions."""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of its model, as far as they are recorded."""
        return Capabilities.of_names(self.can, context=self.context)


class PlannerSetup(Value):
    """The configuration of the planner."""

    card: Card
    can: Names
    """Names of the capabilities of its model."""
    context: int | None = None
    """Maximum tokens of prompt and reply together, if known."""
    runs_in: Literal["server", "process"] = Field(default="server", exclude_if=lambda place: place == "server")
    """The place in which its model runs, on which the wording of the prompt depends."""
    lengths: Literal["grammar", "check"] = Field(default="grammar", exclude_if=lambda check: check == "grammar")
    """How length limits in plans are enforced, on which the grammar depends."""
    form: Form | None
    roster: Roster
    wording: Wording | None = Field(default=None, exclude_if=lambda wording: wording is None)
    examples: int | tuple[PlanExample, ...]
    instructions: str = ""
    """The user's own instructions for plans."""
    samples: int
    repair: bool
    sampling: Sampling

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of its model, as far as they are recorded."""
        return Capabilities.of_names(self.can, context=self.context, runs_in=self.runs_in, lengths=self.lengths)


class Setup(Value):
    """The conductor's configuration, from which a replay makes the same requests."""

    planner: PlannerSetup
    workers: tuple[WorkerSetup, ...]
    """The whole pool, in its order."""
    access: AccessMode
    retries: int
