"""Pool files: parses and validates the TOML tables `[workers.NAME]` and `[planner]`, and builds the workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rl_conductor._internal.imports import import_object
from rl_conductor._internal.toml import read_toml
from rl_conductor._internal.validation import field_errors
from rl_conductor.agents.mcp_server import MCPServer
from rl_conductor.agents.toolset import AnyTool
from rl_conductor.errors import ConfigError
from rl_conductor.models import PROVIDERS, Model, adapter, expected_providers, model, providers
from rl_conductor.models.options import checked_options, describe_option_error
from rl_conductor.models.redaction import is_secret_name
from rl_conductor.plan_text.forms import Form
from rl_conductor.pool.function_model import FunctionModel, is_worker_function
from rl_conductor.pool.worker import CALL_TIMEOUT, Worker, slots_for
from rl_conductor.trace.checks import Stage
from rl_conductor.types import Card, Price, Roster, Sampling, Wording
from rl_conductor.workflow.example import MAX_EXAMPLES
from rl_conductor.workflow.limits import PLAN_TOKENS
from rl_conductor.workflow.workflow import AccessMode

MODEL_ARGUMENTS = ("base_url", "headers", "max_retries", "organization")
"""Arguments of models that are easily taken for settings of a worker."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class ModelEntry(_Entry):
    """A model in a pool file."""

    unknown_fields: ClassVar[Mapping[str, str]] = {
        "api_key": 'keys are not written in files; name the environment variable: api_key_env = "MY_API_KEY"',
        **{name: f"an argument of the model; write options = {{ {name} = ... }}" for name in MODEL_ARGUMENTS},
    }
    """What error messages say about fields that users may expect here."""

    model: str = Field(examples=['model = "openai:gpt-6-sol"'])
    """`provider:model`, `conductor:FILE` for the conductor of another pool file, or `module:Class`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the adapter, such as `base_url`. API keys are rejected; they belong in the environment."""
    api_key_env: str | None = None
    """Name of the environment variable with the API key, which is sent to `base_url`."""
    headers_env: dict[str, str] = Field(default_factory=dict)
    """Headers of every request, each with the name of the environment variable that holds its value."""
    price: Price | None = None
    """Overrides the price from the price table."""
    tags: frozenset[str] = frozenset()
    region: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, entry: Any) -> Any:
        """Accepts the name of a model as the whole entry."""
        return {"model": entry} if isinstance(entry, str) else entry

    def build(self) -> Model:
        """Creates the model with its options and price.

        Raises:
            ConfigError: the model does not exist, or an option is invalid or an API key.
        """
        if "api_key" in self.options:
            raise ConfigError(
                f"{self.model}: options.api_key is not allowed in a file; set it in the environment, and name the "
                'variable as api_key_env = "MY_API_KEY"'
            )
        self._check_secrets()
        options = self._checked_options()
        options |= self._secret_options(options.get("headers") or {})
        if self.price is not None:
            options["price"] = self.price
        try:
            return _create_model(self.model, options)
        except TypeError as error:
            raise ConfigError(f"{self.model}: invalid options: {self._describe(error)}") from error

    def _check_secrets(self) -> None:
        """Raises `ConfigError` for a secret among the options, which are written to files and traces."""
        headers = self.options.get("headers")
        for header in headers if isinstance(headers, Mapping) else ():
            if is_secret_name(str(header)):
                raise ConfigError(
                    f"{self.model}: the header {header} is not allowed in a file; set it in the environment, and name "
                    f'the variable as headers_env = {{ {header} = "MY_HEADER" }}'
                )
        try:
            password = urlsplit(str(self.options.get("base_url", ""))).password
        except ValueError as error:
            raise ConfigError(f"{self.model}: options.base_url is no URL: {error}") from error
        if password:
            raise ConfigError(
                f"{self.model}: a password in options.base_url is not allowed in a file; set a header in the "
                'environment, and name the variable as headers_env = { Authorization = "MY_HEADER" }'
            )

    def _checked_options(self) -> dict[str, Any]:
        """Returns the options with the types that the provider's adapter has for them."""
        provider = self.model.partition(":")[0]
        if provider not in PROVIDERS and provider not in providers():
            return dict(self.options)
        try:
            return checked_options(self.options, adapter(provider))
        except ConfigError as error:
            raise ConfigError(f"{self.model}: {error}") from None

    def _describe(self, error: TypeError) -> str:
        provider = self.model.partition(":")[0]
        source = adapter(provider) if provider in providers() else import_object(self.model)
        return describe_option_error(error, source)

    def _secret_options(self, headers: Mapping[str, str]) -> dict[str, Any]:
        """Reads the key, and headers to add to `headers`, from the environment."""
        options: dict[str, Any] = {}
        if self.api_key_env is not None:
            options["api_key"] = _variable(self.api_key_env, self.model).strip()
        if self.headers_env:
            options["headers"] = {**headers, **_secret_headers(self.headers_env, self.model)}
        return options

    def relative_to(self, folder: Path) -> Self:
        """Resolves the path of a `conductor:FILE` model, which is relative to the file that names it."""
        provider, _, path = self.model.partition(":")
        return self.model_copy(update={"model": f"{provider}:{folder / path}"}) if provider == "conductor" else self


def is_import_path(name: str) -> bool:
    """Returns whether the name of a model is `module:Class`, and not `provider:model`."""
    provider, _, attribute = name.partition(":")
    return provider not in PROVIDERS and attribute.isidentifier() and provider not in providers()


def _create_model(name: str, options: Mapping[str, Any]) -> Model:
    """Creates the model `provider:name`, or an instance of the class `module:Class`."""
    if not is_import_path(name):
        return model(name, **options)
    try:
        model_class = import_object(name)
    except ConfigError as error:
        raise ConfigError(f"no model {name!r}: {expected_providers(name)}, or 'module:Class'; {error}") from None
    instance = FunctionModel(model_class) if is_worker_function(model_class) else model_class(**options)
    if not isinstance(instance, Model):
        raise ConfigError(f"{name} is not a subclass of rl_conductor.Model, nor a function")
    return instance


class MCPEntry(_Entry):
    """An MCP server in a pool file: `[workers.NAME.mcp.SERVER]`. Secrets are read from the environment."""

    command: tuple[str, ...] = ()
    """The program and its arguments."""
    env: tuple[str, ...] = ()
    """The environment variables that the program gets, besides `PATH`, `HOME` and a few like them."""
    url: str = ""
    """The address of a server that speaks streamable HTTP."""
    api_key_env: str = ""
    """The environment variable with the bearer token for the address."""
    headers_env: dict[str, str] = Field(default_factory=dict)
    """HTTP headers, and for each the environment variable with its value."""
    only: tuple[str, ...] | None = None
    """The tools that the model may call; by default all."""
    prefix: str = ""
    """Put before the tools' names."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds for one use of a tool."""

    def build(self, name: str) -> MCPServer:
        """Creates the server, which is not started.

        Raises:
            ConfigError: the entry is invalid, or a variable that it names is not set.
        """
        reader = f"MCP server {name!r}"
        headers = _secret_headers(self.headers_env, reader)
        if self.api_key_env:
            headers["Authorization"] = f"Bearer {_variable(self.api_key_env, reader).strip()}"
        return MCPServer(
            self.command,
            url=self.url,
            name=name,
            env={variable: _variable(variable, reader) for variable in self.env},
            headers=headers,
            only=self.only,
            prefix=self.prefix,
            timeout=self.timeout,
        )


def _variable(name: str, reader: str) -> str:
    """Returns the value of an environment variable; `reader` is the model or server that needs it."""
    value = os.environ.get(name, "")
    if not value.strip():
        raise ConfigError(f"{reader}: the environment variable {name} is not set")
    return value


def _secret_headers(variables: Mapping[str, str], reader: str) -> dict[str, str]:
    return {header: _variable(variable, reader).strip() for header, variable in variables.items()}


class WorkerSettings(_Entry):
    """A worker's card and the settings of its calls; the part of `[workers.NAME]` without the model."""

    description: str = ""
    """The worker's purpose, which the planner reads."""
    strengths: str = ""
    instructions: str = ""
    """A system prompt for every call of the worker."""
    accuracy: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    latency: float | None = None
    price: Price | None = None
    tags: frozenset[str] = frozenset()
    region: str | None = None
    sampling: Sampling = Field(default_factory=Sampling)
    timeout: float = Field(default=CALL_TIMEOUT, gt=0)
    hedge_after: float | None = Field(default=None, ge=0)
    concurrency: int | None = Field(default=None, ge=1)
    tools: tuple[str, ...] = ()
    """What the model may call: Python functions as `module:function`, and the URLs of MCP servers."""
    mcp: dict[str, MCPEntry] = Field(default_factory=dict)
    """MCP servers whose tools the model may call, by name."""

    def all_tools(self, tools: Sequence[AnyTool] = ()) -> tuple[AnyTool, ...]:
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


class PlannerSettings(_Entry):
    """Settings of the planner's prompt. A trained planner needs the settings that it was trained with."""

    form: Form | None = None
    """Output format of plans; `None` selects it by the model's capabilities."""
    roster: Roster = "cards"
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
    instructions: str = ""
    """Your own instructions for plans."""
    samples: int = Field(default=5, ge=1)
    """Maximum number of plans that are sampled until one is valid."""


class GuardrailEntry(_Entry):
    """A guardrail in a pool file: `[[guardrails]]`."""

    type: str
    """`presidio`, `openai-moderation`, `groundedness`, or `module:Class`."""
    name: str | None = Field(default=None, min_length=1)
    """Its name in traces and errors; by default that of its type."""
    stages: tuple[Stage, ...] | None = Field(default=None, min_length=1)
    """Where it checks; by default as its type does."""
    fail_open: bool = False
    """Uses texts when the check itself fails. By default they are refused then."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds for one check."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class. API keys are rejected; they belong in the environment."""


class PoolFile(_Entry):
    """A pool file: `[workers.NAME]` tables, and optionally `[planner]` and `[[guardrails]]`."""

    workers: dict[str, WorkerEntry] = Field(examples=["a table [workers.NAME] for each worker"])
    planner: PlannerEntry | None = None
    guardrails: tuple[GuardrailEntry, ...] = ()
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
