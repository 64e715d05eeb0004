"""Builds worker pools from LangChain models, other runnables and core models."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableLambda, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.retry import RunnableRetry

from langchain_conductor.call_defaults import CALL_SETTINGS, CallDefaults
from langchain_conductor.models import ChatModel, RunnableModel
from langchain_conductor.models.chat_wrappers import find_chat_models, has_no_model
from langchain_conductor.models.counted_function import CountedFunction
from langchain_conductor.models.nested_conductor import NestedConductor
from langchain_conductor.models.prices import holds_conductor
from rl_conductor import Conductor
from rl_conductor.errors import ConfigError
from rl_conductor.integration import Described, WorkerFunction, is_worker_function, redacted_repr, worker_from
from rl_conductor.models import Model, model
from rl_conductor.pool import Worker, WorkerPool
from rl_conductor.types import Card, Sampling

AnyModel = Model | Runnable[Any, Any] | WorkerFunction | str
"""A core model, a LangChain chat model, any other runnable, a Python function, or `provider:model`."""
AnyWorker = AnyModel | Worker | Mapping[str, Any]
"""A worker, a model, or an entry such as `{"model": agent, "description": "looks up prices"}`."""


BOUND_SETTINGS = {*CALL_SETTINGS, "policy", "limits"}
"""Bound options that a Conductor can take over as its settings."""

UNNAMED_GRAPH = "LangGraph"
"""LangGraph's default name for graphs."""


@runtime_checkable
class HasConductor(Protocol):
    """A runnable built on a Conductor; as a worker it is replaced by that Conductor with the same defaults."""

    @property
    def conductor(self) -> Conductor:
        """The Conductor that does the work."""

    @property
    def call_defaults(self) -> CallDefaults:
        """Settings of every call."""


def to_core_model(source: AnyModel) -> Model:
    """Converts any model to a core one.

    Raises:
        ConfigError: `source` is not a model; the message lists the accepted types.
    """
    match source:
        case str():
            return model(source)
        case Runnable() if has_no_model(source):
            example = "init_chat_model('provider:model', configurable_fields='any')"
            raise ConfigError(f"the model is chosen by configs only; write one for calls without a config: {example}")
        case Runnable():
            if (unwrapped := unwrap_conductor(source)) is not None:
                conductor, defaults = unwrapped
                return conductor if defaults == CallDefaults() else NestedConductor(conductor, defaults)
            models = find_chat_models(source)
            # A wrapped conductor has a budget of its own, which `RunnableModel` takes into account.
            is_chat_model = bool(models) and not any(isinstance(chat, HasConductor) for chat, _ in models)
            return ChatModel(source) if is_chat_model else RunnableModel(source)
        case Model():
            return source
    if is_worker_function(source):
        return CountedFunction(source)
    accepted = "a chat model, a runnable, a function, 'provider:model' or a core Model"
    raise ConfigError(f"{redacted_repr(source)} is not a model; write {accepted}")


def describe_source(source: object) -> object:
    """Returns a model or an entry for the text of a conductor, with the class in place of a runnable."""
    if isinstance(source, Mapping):
        return {name: describe_source(value) for name, value in source.items()}
    return type(source).__name__ if isinstance(source, Runnable) else source


def unwrap_conductor(source: Runnable[Any, Any]) -> tuple[Conductor, CallDefaults] | None:
    """Returns the Conductor of `source`, with the settings of `.bind()`, `.with_config()` and `.with_retry()`.

    It is `None` for other runnables, and for a conductor with fallbacks or with bound options that are no settings,
    such as tools. The attempts of `.with_retry()` apply to each call of the Conductor.
    """
    if isinstance(source, RunnableWithFallbacks):  # it seems to have the attributes of its runnable
        return None
    if not isinstance(source, RunnableBindingBase):
        return (source.conductor, source.call_defaults) if isinstance(source, HasConductor) else None
    if source.config_factories:
        return None
    if source.kwargs.keys() - BOUND_SETTINGS or (inner := unwrap_conductor(source.bound)) is None:
        return None
    conductor, defaults = inner
    options = {name: value for name, value in source.kwargs.items() if value is not None}
    changes: dict[str, Any] = {name: options.pop(name) for name in ("policy", "limits") if name in options}
    if isinstance(source, RunnableRetry):
        changes["retries"] = source.max_attempt_number - 1
    return conductor.replaced(**changes), defaults.merged(options, source.config)


def pool_of(workers: Mapping[str, AnyWorker]) -> WorkerPool:
    """Builds a pool of LangChain models, other runnables and core models, in any mix.

    Raises:
        ConfigError: there is no worker, or one of them is not a model; the message names it.
    """
    if not isinstance(workers, Mapping):
        raise ConfigError(f"workers is a {type(workers).__name__}; write {{'name': model, ...}}")
    if isinstance(workers, WorkerPool):
        return workers
    return WorkerPool(_to_worker(name, worker) for name, worker in workers.items())


def _to_worker(name: str, source: AnyWorker) -> Worker:
    if isinstance(source, Mapping):
        return worker_from(name, source, _to_worker)
    if isinstance(source, Worker):
        return source.renamed(name)
    try:
        core_model = to_core_model(source)
    except ConfigError as error:
        raise ConfigError(f"worker {name!r}: {error}") from error
    worker = Worker.of(name, core_model, description=_find_description(source, name) or None)
    if isinstance(core_model, NestedConductor):
        sampling = core_model.defaults.sampling.model_dump(exclude_defaults=True)
        return replace(worker, sampling=worker.sampling.model_copy(update=sampling))
    # LangChain's models come with their own settings; the budget only has to know the maximum length of a reply.
    if isinstance(core_model, ChatModel):
        return replace(worker, sampling=Sampling(max_tokens=core_model.max_tokens))
    if isinstance(core_model, RunnableModel):
        return replace(worker, sampling=Sampling(), card=_card_of(core_model, worker.card))
    return worker


def _card_of(core_model: RunnableModel, card: Card) -> Card:
    """Returns the card without a price if a conductor works in the runnable: its own price says nothing about that."""
    return card.model_copy(update={"price": None}) if holds_conductor(core_model.runnable) else card


def _find_description(source: AnyModel, name: str) -> str:
    """Returns the description of a tool, function, agent or graph; its own name if it has nothing else."""
    if isinstance(source, RunnableLambda):
        function = getattr(source, "func", None) or source.afunc
        docstring = inspect.getdoc(function) if inspect.isroutine(function) else None
        return (docstring or "").partition("\n\n")[0]
    if isinstance(source, Described) and isinstance(source.description, str) and source.description:
        return source.description
    own_name = source.name if isinstance(source, Runnable) and not isinstance(source, BaseChatModel) else None
    return own_name if own_name and own_name not in (name, UNNAMED_GRAPH) else ""
