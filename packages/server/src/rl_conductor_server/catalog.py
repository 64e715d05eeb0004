"""The models that the server offers: each is a conductor with its own limits, under an alias and a pinned name."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from functools import cached_property

from rl_conductor._internal.version import package_version
from rl_conductor.agents.tool_loop import ToolLoopModel
from rl_conductor.conductor import Conductor
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.config.profiles import MINI, ULTRA
from rl_conductor.errors import ConductorError, ConfigError
from rl_conductor.planning.routing.router import Router
from rl_conductor.pool.pool import close_all
from rl_conductor.prompting.prompt_version import prompt_version
from rl_conductor_server.errors import ApiError
from rl_conductor_server.settings import KeyEntry, KeyLimits, ServedModelEntry
from rl_conductor_server.store import Arm

MAX_QUOTED_CHARS = 128
"""Characters of an unknown name that an error quotes."""
PREFIX = "conductor:"
"""The provider in the names of conductors, which served models leave out."""
BUILT_IN = {"conductor-mini": (MINI, date(2026, 11, 21)), "conductor-ultra": (ULTRA, date(2026, 11, 21))}
"""The built-in models, with the dates of their last change."""
DETECTED = {"can", "context", "lengths"}
"""Capabilities that may be detected only when a model is first used."""


@dataclass(frozen=True)
class ServedModel:
    """A model that the server offers."""

    name: str
    """An alias of the newest release."""
    released: date
    conductor: Conductor
    arm: Arm | None = None
    """The arm of the experiment of this name; `None` for a model that is not part of an experiment."""
    other_conductor: Conductor | None = field(default=None, compare=False)
    """The conductor of the experiment's other arm."""

    @property
    def conductors(self) -> Sequence[Conductor]:
        """The conductors that may answer under this name, its own first."""
        return (self.conductor,) if self.other_conductor is None else (self.conductor, self.other_conductor)

    @cached_property
    def pinned(self) -> str:
        """The name of exactly this release."""
        return f"{self.name}-{self.released.isoformat()}"

    @property
    def unpriced(self) -> Sequence[str]:
        """The workers and planners without a known price, with the names of their models."""
        pools = [conductor.pool for conductor in self.conductors]
        planners = [planner.model for conductor in self.conductors for planner in conductor.planner.planners]
        workers = {n: worker.model.name for pool in pools for n, worker in pool.items() if worker.model.price is None}
        others = {model.name for model in planners if model.price is None} - set(workers.values())
        return [f"{n} ({model})" for n, model in workers.items()] + [f"the planner {model}" for model in sorted(others)]

    def is_among(self, names: Collection[str] | None) -> bool:
        """Returns whether this is one of the models of these names; `None` means all."""
        return names is None or self.name in names or self.pinned in names

    @property
    def created(self) -> int:
        """The release date, in seconds since 1970."""
        return int(datetime.combine(self.released, time(), UTC).timestamp())

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that affects its answers: code, prompts, limits, planner, pool, guardrails."""
        conductor = self.conductor
        parts = [package_version(), prompt_version(), conductor.limits.model_dump_json(), conductor.config.access]
        for planner in conductor.planner.planners:
            parts += [planner.model.name, planner.setup.model_dump_json(exclude=DETECTED)]
            parts += [planner.domain.model_dump_json()] if planner.domain else []
        parts += [conductor.config.router.sha256] if conductor.config.router else []
        parts += [conductor.config.selector.model_dump_json()] if conductor.config.selector else []
        for worker in conductor.pool.values():
            parts.append(worker.setup.model_dump_json(exclude=DETECTED))
            parts += [worker.model.tools.description] if isinstance(worker.model, ToolLoopModel) else []
        parts += [f"{guardrail.name} {sorted(guardrail.stages)}" for guardrail in conductor.config.guardrails]
        return f"fp_{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:12]}"


class ModelCatalog:
    """All models that the server offers."""

    def __init__(self, models: Collection[ServedModel]) -> None:
        self._models = {name: model for model in models for name in (model.name, model.pinned)}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(dict.fromkeys(self._models.values()))

    def find(self, name: str, *, is_listed: Callable[[ServedModel], bool] = lambda _: True) -> ServedModel:
        """Returns the model with this alias or pinned name.

        Raises:
            ApiError: there is no such model; the error lists those for which `is_listed` is true.
        """
        if name not in self._models:
            available = ", ".join(model.name for model in self if is_listed(model))
            message = f"no model {name[:MAX_QUOTED_CHARS]!r}; available models: {available}"
            raise ApiError(message, status=404, code="model_not_found", param="model")
        return self._models[name]

    def check_keys(self, keys: Mapping[str, KeyEntry]) -> None:
        """Raises `ConfigError` if a key of the settings is for a model that does not exist."""
        for name, entry in keys.items():
            self.check_models(entry.models or (), of=f"keys.{name}.models")

    def check_models(self, names: Iterable[str], *, of: str) -> None:
        """Raises `ConfigError` if one of the `names` in the setting `of` is not a model."""
        for name in sorted(set(names) - self._models.keys()):
            available = ", ".join(model.name for model in self)
            raise ConfigError(f"{of}: there is no model {name!r}; write one of {available}")

    def price_warnings(self, keys: Mapping[str, KeyLimits]) -> Iterator[str]:
        """Yields warnings of keys with a budget in US dollars, which can't call models without a known price."""
        refused = defaultdict[tuple[str, ...], list[str]](list)
        for key, limits in keys.items():
            if limits.usd is not None:
                models = (model for model in self if model.is_among(limits.models))
                refused[tuple(dict.fromkeys(name for model in models for name in model.unpriced))].append(key)
        refused.pop((), None)
        for unpriced, names in refused.items():
            yield (
                f"the budget in US dollars of {', '.join(names)} refuses the calls of {', '.join(unpriced)}, as their "
                "price is unknown; write price = { input = 2.5, output = 10 }, in dollars per million tokens, in their "
                "entries, or limit the key with tokens instead of usd"
            )

    async def aclose(self) -> None:
        """Closes the conductors of all models."""
        await close_all(model.conductor for model in self)


def build_catalog(pool: DiscoveredPool, entries: Mapping[str, ServedModelEntry]) -> ModelCatalog:
    """Creates the built-in models and those of the settings over a pool.

    Raises:
        ConfigError: an entry has the name of a built-in model, or its policy forbids every plan.
    """
    reserved = sorted(BUILT_IN.keys() & entries.keys())
    if reserved:
        raise ConfigError(f"models.{reserved[0]}: this name is taken; choose another, such as {reserved[0]}-house")
    built_in = [
        ServedModel(name, released, Conductor.from_discovered(pool, profile=profile, name=name))
        for name, (profile, released) in BUILT_IN.items()
    ]
    return ModelCatalog(built_in + [_model_from_entry(name, entry, pool) for name, entry in entries.items()])


def _model_from_entry(name: str, entry: ServedModelEntry, pool: DiscoveredPool) -> ServedModel:
    limits = {limit: getattr(entry.limits, limit) for limit in entry.limits.model_fields_set}
    with naming_table(f"models.{name}"):
        config = pool.with_profile(entry.profile)
        config = config.replaced(
            policy=entry.policy,
            limits=config.limits.model_copy(update=limits),
            router=Router.read(entry.router) if entry.router else None,
            name=name,
        )
        return ServedModel(name, entry.released, Conductor.from_config(config))


@contextmanager
def naming_table(table: str) -> Iterator[None]:
    """Turns errors of the block into a `ConfigError` that names the table of the settings."""
    try:
        yield
    except ConductorError as error:
        raise ConfigError(f"{table}: {error}") from error


def catalog_of(conductors: Sequence[Conductor]) -> ModelCatalog:
    """Offers conductors as models of their own names, released today.

    Raises:
        ConfigError: two have one name, or there is none.
    """
    names = [conductor.name.removeprefix(PREFIX) for conductor in conductors]
    if not names:
        raise ConfigError("there is no conductor to serve; pass at least one")
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two conductors are named {repeated!r}; give each its own with Conductor(..., name=...)")
    today = datetime.now(UTC).date()
    return ModelCatalog(
        [ServedModel(name, today, conductor) for name, conductor in zip(names, conductors, strict=True)]
    )
