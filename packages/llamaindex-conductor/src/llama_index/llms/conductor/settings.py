"""`ConductorSettings`: the settings of `Conductor`, and the core's Conductor that is built from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Self

from llama_index.core.llms.function_calling import FunctionCallingLLM
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_serializer, field_validator
from typing_extensions import override

import rl_conductor
from rl_conductor import DiscoveredPool, Limits, Policy, Sampling, Worker
from rl_conductor.errors import ConfigError
from rl_conductor.guardrails import Guardrail
from rl_conductor.integration import (
    AccessMode,
    LearnedSource,
    ProfileName,
    first_field_error,
    redacted_repr,
    select_pool,
    settings_error,
)

from .instrumentation import instrument_pool
from .workers import (
    WorkerLike,
    WorkersLike,
    create_planner,
    describe_worker,
    name_workers,
    pool_of,
    reject_placeholder,
)

POOL_FIELDS = frozenset({"workers", "planner", "conductor_source"})
"""Fields that select the workers and the planner."""
CORE_FIELDS = POOL_FIELDS | {"instructions", "policy", "limits", "profile", "access", "guardrails", "max_retries"}
"""Fields that the core's Conductor is built from."""


class ConductorSettings(FunctionCallingLLM):
    """An LLM with the settings of a Conductor, which it builds when they are set or changed."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    workers: Any = None
    """Workers of any kind, by name or in a list; `None` discovers the models of this machine."""
    planner: Any = None
    """The planner: `provider:model`, a LlamaIndex LLM or the core's `Planner`; by default the first language model."""
    conductor_source: Any = Field(default=None, alias="conductor")
    """The folder of a conductor that `rl-conductor learn` created, or the core's Conductor; passed, assigned and
    serialised as `conductor`. The attribute of that name is the Conductor that is built from it and the other fields.
    """
    instructions: str = ""
    """Your own instructions for plans, such as when to check a result; replaces those of `planner`."""
    policy: Policy | None = None
    """Restricts the workers that are used and the replies that they may see."""
    limits: Limits | None = None
    """Bounds the dollars, tokens, calls, seconds, rounds and steps of a run."""
    profile: ProfileName | None = None
    """`mini` (few steps, a deadline, cheap workers first) or `ultra` (five steps, a second round)."""
    access: AccessMode | None = None
    """Whether a step reads all earlier steps or none (`binary`), or any of them; by default as in the pool file."""
    guardrails: Any = None
    """A list of guardrails, which check the messages, workers' prompts and replies, and the answer."""
    max_retries: int | None = Field(default=None, ge=0)
    """Maximum number of retries of a worker's call that failed with a transient error; by default 2, or that of
    `conductor`."""
    temperature: float | None = None
    """Sampling temperature of the worker that gives the answer."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of the answer, reasoning included."""
    context_window: int | None = None
    """Tokens that a final worker can read and write; by default the smallest known one of the language models."""

    _selected: DiscoveredPool = PrivateAttr()
    """The workers and the planner."""
    _core: rl_conductor.Conductor = PrivateAttr()

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise settings_error(error, type(self)) from None

    @field_validator("workers", mode="before")
    @classmethod
    def _name_workers(cls, workers: WorkersLike | None) -> dict[str, WorkerLike] | None:
        return None if workers is None else name_workers(workers)

    # ----------------------------------------------------------------------------------- changes

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        # The value applies from the next call on. After an error, the LLM is as it was.
        if name in ConductorSettings.model_fields.keys() - FunctionCallingLLM.model_fields.keys():
            changed = self.model_copy(update={name: value})
            value = getattr(changed, name)
            self._selected, self._core = changed._selected, changed._core  # noqa: SLF001
        super().__setattr__(name, value)

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copies the LLM; the settings in `update` are validated, and the copy works by them.

        Raises:
            ConfigError: a value has the wrong type, or no conductor can be built with it.
            PolicyError: the policy allows no workflow.
        """
        copy = super().model_copy(deep=deep)
        update = {"conductor_source" if name == "conductor" else name: value for name, value in (update or {}).items()}
        for name, value in update.items():
            try:
                self.__pydantic_validator__.validate_assignment(copy, name, value)
            except ValidationError as error:
                raise ConfigError(f"{name} is {redacted_repr(value)}: {first_field_error(error).message}") from None
        copy._build_core(update.keys())  # noqa: SLF001
        return copy

    def _build_core(self, changed_fields: AbstractSet[str]) -> None:
        """Rebuilds the parts that depend on the changed fields."""
        if changed_fields & POOL_FIELDS:
            self._selected = select_pool(
                None if self.workers is None else pool_of(self.workers),
                None if self.planner is None else create_planner(self.planner),
                self.conductor_source,
            )
        if changed_fields & CORE_FIELDS:
            for guardrail in self.guardrails or ():
                reject_placeholder("a guardrail", guardrail, option="guardrails")
            configured = self._selected.with_settings(
                profile=self.profile,
                policy=self.policy,
                limits=self.limits,
                access=self.access,
                retries=self.max_retries,
                instructions=self.instructions,
                guardrails=self.guardrails,
            )
            self._core = rl_conductor.Conductor.from_config(instrument_pool(configured))

    # ----------------------------------------------------------------------------------- properties

    @property
    def conductor(self) -> rl_conductor.Conductor:
        """The core's Conductor that this LLM runs."""
        return self._core

    @conductor.setter
    def conductor(self, source: LearnedSource | None) -> None:
        self.conductor_source = source

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters of the worker that gives the answer, unless a call sets others."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)

    def _final_workers(self) -> list[Worker]:
        """Returns the workers that may give the answer, without the wrappers that report their calls."""
        pool = self._selected.pool
        space = self._core.policy.space(pool.cards, max_steps=self._core.limits.steps)
        return [pool[name] for name in space.final_workers]

    # ----------------------------------------------------------------------------------- serialisation

    @field_serializer("workers")
    def _serialize_workers(self, workers: dict[str, WorkerLike] | None) -> dict[str, Any] | None:
        return None if workers is None else {name: describe_worker(worker) for name, worker in workers.items()}

    @field_serializer("planner")
    def _serialize_planner(self, planner: object) -> Any:
        return describe_worker(planner)

    @field_serializer("conductor_source")
    def _serialize_source(self, source: LearnedSource | None) -> str | None:
        return None if source is None else source.name if isinstance(source, rl_conductor.Conductor) else str(source)

    @field_serializer("guardrails")
    def _serialize_guardrails(self, guardrails: Sequence[Guardrail] | None) -> list[dict[str, str]] | None:
        return None if guardrails is None else [{"object": guardrail.name} for guardrail in guardrails]

    @field_serializer("policy", "limits")
    def _serialize_model(self, value: BaseModel | None) -> dict[str, Any] | None:
        return None if value is None else value.model_dump(mode="json")

    @override
    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        # LlamaIndex's LLMs show their API keys in their own texts.
        serialised = self.model_dump(include={"workers", "planner", "conductor_source", "guardrails"})
        yield from ((name, serialised.get(name or "", value)) for name, value in super().__repr_args__())

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickles the workers themselves; LlamaIndex's default silently omits those that can't be pickled.
        return type(self).from_dict, (
            {
                **self.to_dict(),
                "workers": self.workers,
                "planner": self.planner,
                "conductor": self.conductor_source,
                "guardrails": self.guardrails,
            },
        )


OPTIONS = tuple(
    field.alias or name
    for name, field in ConductorSettings.model_fields.items()
    if name not in FunctionCallingLLM.model_fields
)
