"""Builds Conductors with calls that show in LangChain's traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from langchain_core.runnables import Runnable

from langchain_conductor.call_defaults import CallDefaults
from langchain_conductor.messages import PROVIDER
from langchain_conductor.models import ChatModel
from langchain_conductor.models.nested_conductor import NestedConductor
from langchain_conductor.pool import AnyModel, AnyWorker, HasConductor, pool_of, to_core_model, unwrap_conductor
from langchain_conductor.tracing import trace_model, trace_planner, untraced
from rl_conductor import Conductor, DiscoveredPool, Planner
from rl_conductor.errors import ConfigError
from rl_conductor.integration import LearnedSource, redacted_repr, select_pool
from rl_conductor.models import Model

ConductorSource = LearnedSource | HasConductor | Runnable[Any, Any] | Mapping[str, AnyWorker]
"""A `ChatConductor`, also with bound settings, a config or retries, a core Conductor, the folder of a learned one, or a
dict of workers."""


def resolve_pool(
    workers: Mapping[str, AnyWorker] | None = None,
    planner: AnyModel | Planner | None = None,
    conductor: LearnedSource | None = None,
) -> DiscoveredPool:
    """Builds a pool of `workers`, or of the models found on this machine, and selects its planner; both are traced.

    Args:
        workers: the workers; of a learned folder by default those of its pool file.
        planner: replaces the planner.
        conductor: a Conductor, or the folder of a learned one.

    Raises:
        ConfigError: a worker or the planner can't be created, or as for `select_pool`.
    """
    resolved = select_pool(
        None if workers is None else pool_of(workers),
        None if planner is None else _to_planner(planner),
        conductor,
    )
    return replace(resolved.map_planners(trace_planner), pool=resolved.pool.wrap_models(trace_model))


def _to_planner(source: AnyModel | Planner) -> Planner:
    if isinstance(source, Planner):
        return source
    if isinstance(source, Mapping):
        priced_model = "ChatModel(model, price=Price(input=2.5, output=10))"
        raise ConfigError(f"the planner is a dict; write the model alone, or with a price {priced_model}")
    try:
        core_model = to_core_model(source)
    except ConfigError as error:
        raise ConfigError(f"the planner: {error}") from error
    return Planner.of(core_model)


def to_conductor(source: ConductorSource | None) -> tuple[Conductor, CallDefaults]:
    """Returns a traced Conductor and the settings of its calls.

    Args:
        source: a `ChatConductor`, a core Conductor, the folder of a learned conductor, or a dict of workers; by default
            the models found on this machine.

    Raises:
        ConfigError: `source` is something else, or the folder can't be loaded.
    """
    if source is None or isinstance(source, Mapping):
        return Conductor.from_config(resolve_pool(source)), CallDefaults()
    if isinstance(source, str | Path) and Path(source).is_dir():
        return Conductor.from_config(resolve_pool(conductor=source)), CallDefaults()
    if isinstance(source, Runnable) and (unwrapped := unwrap_conductor(source)) is not None:
        return unwrapped
    if isinstance(source, Runnable):
        raise ConfigError(
            f"conductor is a {type(source).__name__}; write a ChatConductor without bind_tools, "
            "with_structured_output or fallbacks: create_conductor(tools=...) takes tools, and a node of your own can "
            "call the others"
        )
    if not isinstance(source, Conductor):
        raise ConfigError(
            f"conductor is {redacted_repr(source)}; write a ChatConductor, a Conductor, a folder or a dict"
        )
    traced = source.replaced(planner=trace_planner(source.planner), pool=source.pool.wrap_models(trace_model))
    return traced, CallDefaults()


def model_name(profile: str | None) -> str:
    """Returns the Conductor's name as a model, such as `conductor-mini`."""
    return f"{PROVIDER}-{profile}" if profile else PROVIDER


def max_input_tokens(conductor: Conductor) -> int | None:
    """Returns the smallest context limit of the planner and the workers; `None` if no model profile has one."""
    models = [conductor.planner.model, *(worker.model for worker in conductor.pool.values())]
    limits = [limit for model in models if (limit := _max_input_tokens_of(untraced(model))) is not None]
    return min(limits, default=None)


def _max_input_tokens_of(model: Model) -> int | None:
    match model:
        case ChatModel():
            return model.max_input_tokens
        case NestedConductor():
            return _max_input_tokens_of(model.model)
        case Conductor():
            return max_input_tokens(model)
    return None
