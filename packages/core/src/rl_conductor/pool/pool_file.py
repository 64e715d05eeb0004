"""Pool files: parses and validates the TOML tables `[workers.NAME]` and `[planner]`, and builds the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from rl_conductor._internal.toml import read_toml
from rl_conductor._internal.validation import field_errors
from rl_conductor.agents.toolset import AnyTool
from rl_conductor.errors import ConfigError
from rl_conductor.plan_text.forms import Form
from rl_conductor.pool.mcp_entry import MCPEntry
from rl_conductor.pool.model_entry import Entry, ModelEntry
from rl_conductor.pool.worker import CALL_TIMEOUT, Worker, slots_for
from rl_conductor.trace.checks import Stage
from rl_conductor.types import Card, Names, Price, Roster, Sampling, Wording
from rl_conductor.workflow.example import MAX_EXAMPLES
from rl_conductor.workflow.plan_space import AccessMode
from rl_conductor.workflow.request_tokens import PLAN_TOKENS

PLAN_TIMEOUT = 120.0
"""Default seconds for one attempt at a plan."""


class WorkerSettings(Entry):
    """A worker's card and the settings of its calls; the part of `[workers.NAME]` without the model."""

    description: str = ""
    """The worker's purpose, which the planner reads."""
    strengths: str = ""
    """The kinds of tasks that the worker is good at, for the planner."""
    instructions: str = ""
    """A system prompt for every call of the worker."""
    accuracy: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    """The measured share of right answers, by domain."""
    latency: float | None = None
    """The median seconds of a call."""
    price: Price | None = None
    """The price of the model; by default that of the price list."""
    tags: Names = frozenset()
    """Labels that policies select workers by."""
    region: str | None = None
    """The region of the worker's data, which policies select workers by."""
    sampling: Sampling = Field(default_factory=Sampling)
    """Default sampling parameters of its calls."""
    timeout: float = Field(default=CALL_TIMEOUT, gt=0)
    """Seconds for one call."""
    hedge_after: float | None = Field(default=None, ge=0)
    """Seconds after which a hedge call goes to a second worker, within `Limits.hedges`."""
    concurrency: int | None = Field(default=None, ge=1)
    """Maximum number of concurrent calls."""
    tools: tuple[str, ...] = ()
    """The tools that the model may call: Python functions as `module:function`, and the URLs of MCP servers."""
    mcp: dict[str, MCPEntry] = Field(default_factory=dict)
    """MCP servers whose tools the model may call, by name."""

    def all_tools(self, tools: Sequence[AnyTool]) -> tuple[AnyTool, ...]:
        """Returns these tools, `tools`, and the MCP servers.

        Raises:
            ConfigError: the entry of a server is invalid, or a variable that it names is not set.
        """
        return (*self.tools, *tools, *(entry.build(name) for name, entry in self.mcp.items()))

    def apply_to(self, worker: Worker) -> Worker:
        """Returns a copy of `worker` with the specified settings."""
        settings = {name: getattr(self, name) for name in self.model_fields_set}
        card_settings = {name: settings[name] for name in settings.keys() & Card.model_fields.keys()}
        call_settings = {name: settings[name] for name in settings.keys() & {"timeout", "hedge_after", "instructions"}}
        card = worker.card.model_copy(update=card_settings)
        slots = worker.slots if self.concurrency is None else slots_for(self.concurrency)
        sampling = worker.sampling
        if "sampling" in settings:
            max_tokens = self.sampling.max_tokens or sampling.max_tokens
            sampling = self.sampling.model_copy(update={"max_tokens": max_tokens})
        return replace(worker, card=card, sampling=sampling, slots=slots, **call_settings)


class WorkerEntry(ModelEntry, WorkerSettings):
    """A worker in a pool file: `[workers.NAME]`."""

    def to_worker(self, name: str, tools: Sequence[AnyTool] = ()) -> Worker:
        """Creates the worker, with `tools` besides its own.

        Raises:
            ConfigError: its model, one of its options or a tool is wrong.
        """
        try:
            worker = Worker.of(name, self.build())
        except ConfigError as error:
            raise ConfigError(f"worker {name!r}: {error}") from error
        return self.apply_to(worker).with_tools(self.all_tools(tools))


class PlannerSettings(Entry):
    """Settings of the planner's prompt. A trained planner needs the settings that it was trained with."""

    form: Form | None = None
    """Output format of plans; `None` selects it by the model's capabilities."""
    roster: Roster = "cards"
    """How the prompt names the workers: `cards` with names, `anonymous` without them, `ordinals` as numbers only."""
    wording: Wording | None = Field(default=None, exclude_if=lambda wording: wording is None)
    """Wording of the prompt; `None` selects it by the model."""
    examples: int = Field(default=3, ge=0, le=MAX_EXAMPLES)
    """Number of worked examples in the prompt; a trained planner usually needs none."""
    access: AccessMode = "binary"
    """Whether a step reads all earlier steps or none (`binary`), or any of them (`positional`)."""
    max_tokens: int = Field(default=PLAN_TOKENS, ge=1)
    """Maximum tokens of a plan; a longer one is rejected."""


class PlannerEntry(ModelEntry, PlannerSettings):
    """The planner in a pool file: `[planner]`."""

    steps: int = Field(default=5, ge=1)
    """Maximum steps of a plan, unless overridden by the caller's limits."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature of plans; by default the model's own."""
    instructions: str = ""
    """Your own instructions for plans."""
    samples: int = Field(default=5, ge=1)
    """Maximum number of plans that are sampled until one is valid."""
    timeout: float = Field(default=PLAN_TIMEOUT, gt=0, exclude_if=lambda seconds: seconds == PLAN_TIMEOUT)
    """Seconds for one attempt at a plan; a slower one is rejected."""


class GuardrailEntry(Entry):
    """A guardrail in a pool file: `[[guardrails]]`."""

    type: str
    """`presidio`, `openai-moderation`, `groundedness`, or `module:Class`."""
    name: str | None = Field(default=None, min_length=1)
    """Its name in traces and errors; by default that of its type."""
    stages: tuple[Stage, ...] | None = Field(default=None, min_length=1)
    """The stages at which it checks; by default those of its type."""
    fail_open: bool = False
    """Uses texts when the check itself fails. By default they are refused then."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds for one check."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class. API keys are rejected; they belong in the environment."""


class PoolFile(Entry):
    """A pool file: `[workers.NAME]` tables, and optionally `[planner]` and `[[guardrails]]`."""

    workers: dict[str, WorkerEntry] = Field(examples=["a table [workers.NAME] for each worker"])
    """The workers by name, in the order of their numbers in plans."""
    planner: PlannerEntry | None = None
    """The planner; by default the first worker that can plan."""
    guardrails: tuple[GuardrailEntry, ...] = ()
    """The guardrails of every run, in their order."""
    router: Path | None = None
    """Path of a router file, relative to the pool file; `rl-conductor calibrate --router` creates it."""

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        if not self.workers:
            raise ValueError("a pool needs at least one worker; write a table [workers.NAME] for each")
        return self

    @model_validator(mode="after")
    def _check_planner(self) -> Self:
        """Refuses the name of a worker where the planner's model is expected."""
        if self.planner is not None and self.planner.model in self.workers and ":" not in self.planner.model:
            name = self.planner.model
            raise ValueError(
                f"the planner is {name!r}, which is a worker; name a model, such as that of the worker: "
                f'planner = "{self.workers[name].model}"'
            )
        return self

    def build(self) -> list[Worker]:
        """Creates the workers, in the order of the file."""
        return [entry.to_worker(name) for name, entry in self.workers.items()]


def read_pool_file(path: str | Path) -> PoolFile:
    """Reads and validates a pool file.

    Raises:
        ConfigError: the file does not exist, is not TOML, or has an unknown or invalid key.
    """
    content, folder = read_toml(path, PoolFile, "pool file"), Path(path).parent
    return content.model_copy(
        update={
            "router": content.router and folder / content.router,
            "workers": {name: entry.relative_to(folder) for name, entry in content.workers.items()},
            "planner": content.planner and content.planner.relative_to(folder),
        }
    )


def worker_from(name: str, entry: Mapping[str, Any], worker_of: Callable[[str, Any], Worker]) -> Worker:
    """Creates a worker from a mapping such as `{"model": ..., "description": ...}`.

    Args:
        name: the worker's name in the pool.
        entry: the keys of `[workers.NAME]` in a pool file, except that `model` may be an object, and `tools` functions
            and MCP servers.
        worker_of: creates a worker from a name and such an object.

    Raises:
        ConfigError: a key is unknown or has an invalid value.
    """
    entry = dict(entry)
    tools = entry.pop("tools", ())
    is_model_name = isinstance(entry.get("model", ""), str)
    try:
        if is_model_name:
            return PoolFile.model_validate({"workers": {name: entry}}).workers[name].to_worker(name, tools)
        settings = WorkerSettings.model_validate({key: value for key, value in entry.items() if key != "model"})
    except ValidationError as error:
        below, kind = (2, PoolFile) if is_model_name else (0, WorkerSettings)
        errors = "; ".join(map(str, field_errors(error, below=below, model=kind)))
        raise ConfigError(f"worker {name!r} is invalid: {errors}") from None
    worker = worker_of(name, entry["model"])
    if settings.price is not None:
        worker = worker.with_price(settings.price)
    return settings.apply_to(worker).with_tools(settings.all_tools(tools))
