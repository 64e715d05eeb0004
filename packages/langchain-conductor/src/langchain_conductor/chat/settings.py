"""`ChatConductorSettings`: the settings of `ChatConductor`, and the Conductor that is built from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

from langchain_core.callbacks import BaseRunManager
from langchain_core.language_models import BaseChatModel, ModelProfile
from langchain_core.runnables import RunnableConfig
from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    SkipValidation,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from langchain_conductor.call_defaults import AnswerOptions, CallDefaults
from langchain_conductor.conductors import max_input_tokens, model_name, resolve_pool
from langchain_conductor.pool import AnyModel, AnyWorker, describe_source
from rl_conductor import Conductor, DiscoveredPool, Planner, Profile
from rl_conductor.errors import ConfigError
from rl_conductor.guardrails import Guardrail
from rl_conductor.integration import (
    AccessMode,
    LearnedSource,
    first_field_error,
    profile_named,
    redacted_repr,
    settings_error,
)
from rl_conductor.workflow import Limits, Policy

CONDUCTOR_FIELDS = frozenset(
    {
        "workers",
        "planner",
        "conductor_source",
        "model",
        "policy",
        "limits",
        "rounds",
        "max_retries",
        "access",
        "instructions",
        "guardrails",
    }
)
"""Fields that the conductor is built from."""
POOL_FIELDS = frozenset({"workers", "planner", "conductor_source"})
"""Those of them that select the workers and the planner."""

WORKERS_HINT = "a model to work with goes into workers={'name': 'provider:model'}"
"""The hint for users who write a model in place of the name of a profile."""

LANGCHAIN_METADATA = "lc_versions"
"""The key of the metadata that LangChain adds to every chat model."""


class ChatConductorSettings(AnswerOptions, BaseChatModel):
    """A chat model with the settings of a Conductor, which it builds at construction and after changes."""

    model_config = ConfigDict(extra="forbid", validate_by_name=True)

    workers: SkipValidation[Mapping[str, AnyWorker]] | None = None
    """By name: LangChain chat models, other runnables (agents, graphs, chains), `provider:model`, core workers, or
    entries such as `{"model": agent, "description": "looks up prices"}`. The planner reads names and descriptions."""
    planner: SkipValidation[AnyModel | Planner] | None = None
    """The model that writes the plans; by default the discovered one, or the first worker that is a language model."""
    conductor_source: SkipValidation[LearnedSource] | None = Field(default=None, alias="conductor")
    """The folder of a conductor that `rl-conductor learn` created, or a core Conductor. It is passed, and assigned, as
    `conductor`; the attribute of that name is the Conductor that is built from it and the other settings."""
    instructions: str = ""
    """Your own instructions for plans, such as when to check a result; replaces those of `planner`."""
    model: str | None = None
    """The profile: `mini` (few steps, a deadline, cheap workers first) or `ultra` (five steps, a second round). It may
    be set for one call. LangChain uses the name `profile` for the features that a model supports."""
    policy: Policy | None = None
    """Restricts the workers that are used and the replies that they may see."""
    limits: Limits | None = None
    """Bounds the dollars, tokens, calls, seconds, rounds and steps of a run."""
    rounds: int | None = Field(default=None, ge=1)
    """Maximum number of plans that run one after the other; replaces `limits.rounds`."""
    max_retries: int | None = Field(default=None, ge=0)
    """Maximum number of retries of a worker's call that failed with a transient error; by default 2, or that of
    `conductor`."""
    streaming: bool = False
    """Whether `invoke` also streams, for handlers that process each token."""
    stream_drafts: bool = False
    """Whether handlers also get the tokens of the planner and of all workers, beside those of the answer."""

    access: AccessMode | None = None
    """`binary` if a step reads all earlier steps or none (the default), `positional` if it reads any subset."""

    guardrails: SkipValidation[Sequence[Guardrail]] | None = None
    """Checks of the messages, of workers' prompts and replies, and of the answer, which then is not streamed before it
    is checked; by default those of the pool file."""

    _resolved: DiscoveredPool | None = PrivateAttr(default=None)
    """Planner and pool."""
    _conductor: Conductor | None = PrivateAttr(default=None)
    _run: BaseRunManager | None = PrivateAttr(default=None)
    """The run of the current stream, which LangChain does not always pass to `_stream`."""
    _call_config: RunnableConfig | None = PrivateAttr(default=None)
    """The part of the current call's config that LangChain does not pass on."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise settings_error(error, type(self)) from None

    @field_validator("model", mode="before")
    @classmethod
    def _require_profile(cls, value: object) -> object:
        if isinstance(value, BaseChatModel):
            raise ConfigError(f"model is a {type(value).__name__}, but it names a profile; {WORKERS_HINT}")
        return value

    @model_validator(mode="after")
    def _validate_conductor(self) -> Self:
        """Reports mistakes at construction rather than at the first call."""
        assert self.conductor is not None
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        # The conductor is built again if it depends on the field. Errors leave both as they were.
        if name == "profile":
            reject_profile_name(value)
        if name in ChatConductorSettings.model_fields.keys() - BaseChatModel.model_fields.keys():
            value = self._validate_value(name, value)
        if name not in CONDUCTOR_FIELDS:
            super().__setattr__(name, value)
            return
        changed = self.model_copy(update={name: value})
        conductor = changed.conductor
        is_own_profile = self.profile == self._resolve_model_profile()
        super().__setattr__(name, value)
        self._resolved, self._conductor = changed._resolved, conductor  # noqa: SLF001
        if is_own_profile:
            self.profile = self._resolve_model_profile()

    @classmethod
    def _validate_value(cls, name: str, value: Any) -> Any:
        field = cls.model_fields[name]
        annotation: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        try:
            return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
        except ValidationError as error:
            raise ConfigError(f"{name} is {redacted_repr(value)}: {first_field_error(error).message}") from None

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copies the model; the copy builds a conductor of its own if `update` changes it."""
        update = {"conductor_source" if name == "conductor" else name: value for name, value in (update or {}).items()}
        copy = super().model_copy(update=update, deep=deep)
        if POOL_FIELDS & update.keys():
            copy._resolved = None  # noqa: SLF001
        if CONDUCTOR_FIELDS & update.keys():
            copy._conductor = None  # noqa: SLF001
        return copy

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        # LangChain's models show the passwords in their addresses in their own texts.
        for name, value in super().__repr_args__():
            if name == "workers" and isinstance(value, Mapping):
                yield name, {worker: describe_source(source) for worker, source in value.items()}
            else:
                yield name, describe_source(value) if name == "planner" else value

    @property
    def conductor(self) -> Conductor:
        """The underlying Conductor, for direct use of the core."""
        if self._conductor is None:
            self._conductor = self._build_conductor(self.model)
        return self._conductor

    @conductor.setter
    def conductor(self, source: LearnedSource | None) -> None:
        self.conductor_source = source

    @property
    def call_defaults(self) -> CallDefaults:
        """The settings that also apply when the Conductor is a graph node, a runnable or another's worker."""
        metadata = {key: value for key, value in (self.metadata or {}).items() if key != LANGCHAIN_METADATA}
        return CallDefaults(
            self.sampling,
            timeout=self.timeout,
            callbacks=self.callbacks or None,
            tags=self.tags or None,
            metadata=metadata or None,
            stream_drafts=self.stream_drafts,
            rate_limiter=self.rate_limiter,
        )

    def _build_conductor(self, profile: str | None) -> Conductor:
        self._resolved = self._resolved or resolve_pool(self.workers, self.planner, self.conductor_source)
        configured = self._resolved.with_settings(
            profile=_find_profile(profile) if profile else None,
            policy=self.policy,
            limits=self.limits,
            rounds=self.rounds,
            retries=self.max_retries,
            access=self.access,
            instructions=self.instructions,
            guardrails=self.guardrails,
            name=f"{self._resolved.name}-{profile}" if profile else None,
        )
        return Conductor.from_config(configured)

    def _resolve_model_profile(self) -> ModelProfile:
        capabilities = self.conductor.capabilities
        profile = ModelProfile(
            name=model_name(self.model),
            text_inputs=True,
            text_outputs=True,
            image_inputs=capabilities.images,
            pdf_inputs=capabilities.files,
            audio_inputs=False,
            video_inputs=False,
            tool_calling=capabilities.tools,
            tool_choice=capabilities.tools,
            structured_output=capabilities.json_schema,
        )
        if (limit := max_input_tokens(self.conductor)) is not None:
            profile["max_input_tokens"] = limit
        return profile


def _find_profile(name: str) -> Profile:
    """Returns the profile; the error also mentions `workers`, as some users write a model's name here."""
    try:
        return profile_named(name)
    except ConfigError as error:
        raise ConfigError(f"{error}; {WORKERS_HINT}") from None


def reject_profile_name(value: object) -> None:
    """Raises `ConfigError` for the name of a profile in place of LangChain's `profile`, a mapping."""
    if isinstance(value, str):
        raise ConfigError(f"profile is {value!r}, but LangChain calls so what a model supports; write model={value!r}")
