"""A pool, and a Conductor over it, from whatever LangChain's users have at hand."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_conductor.messages import NAME
from langchain_conductor.models import ChatModel, RunnableModel
from langchain_conductor.tracing import reported_planner, reported_pool
from rl_conductor.conductor import Conductor
from rl_conductor.config.discovery import DiscoveredPool, discover
from rl_conductor.config.profiles import Profile, profile_named
from rl_conductor.errors import ConfigError
from rl_conductor.models import Model, model
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.pool_file import worker_from
from rl_conductor.pool.worker import Described, Worker
from rl_conductor.types import Sampling
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy

AnyModel = Model | Runnable[Any, Any] | str
"""A core model, a LangChain chat model, any other runnable, or `provider:model`."""
AnyWorker = AnyModel | Worker | Mapping[str, Any]
"""A worker, a model, or an entry such as `{"model": agent, "description": "looks up prices"}`."""


UNNAMED_GRAPH = "LangGraph"
"""What graphs are called that were given no name."""


@runtime_checkable
class Conducted(Protocol):
    """What runs a Conductor and can be put into another's pool: then that Conductor itself works there."""

    @property
    def conductor(self) -> Conductor:
        """The Conductor."""


def core_model(given: AnyModel) -> Model:
    """Any model as a core one.

    Raises:
        ConfigError: it is no model; the message says what would be.
    """
    match given:
        case str():
            return model(given)
        case Conducted():
            return given.conductor
        case BaseChatModel():
            return ChatModel(given)
        case Runnable():
            return RunnableModel(given)
        case Model():
            return given
    raise ConfigError(f"{given!r} is no model; give a chat model, a runnable, 'provider:model' or a core Model")


def pool_of(workers: Mapping[str, AnyWorker]) -> WorkerPool:
    """A pool of any mix of LangChain's models and the core's.

    Raises:
        ConfigError: there is no worker, or one is none; the message names it.
    """
    if not isinstance(workers, Mapping):
        raise ConfigError(f"workers is a {type(workers).__name__}; write {{'name': model, ...}}")
    return workers if isinstance(workers, WorkerPool) else WorkerPool(_worker(*one) for one in workers.items())


def _worker(name: str, given: AnyWorker) -> Worker:
    if isinstance(given, Mapping):
        return worker_from(name, given, _worker)
    if isinstance(given, Worker):
        return replace(given, name=name, card=given.card.model_copy(update={"name": name}))
    try:
        made = core_model(given)
    except ConfigError as error:
        raise ConfigError(f"worker {name!r}: {error}") from error
    worker = Worker.of(name, made, description=_own_description(given, name) or None)
    # LangChain's models come with their own settings; of these a budget has to know the longest reply.
    if isinstance(made, ChatModel):
        return replace(worker, sampling=Sampling(max_tokens=made.max_tokens))
    return replace(worker, sampling=Sampling()) if isinstance(made, RunnableModel) else worker


def _own_description(given: AnyModel, name: str) -> str:
    """What a tool, a function, an agent or a graph says of itself; its own name where that is all it says."""
    if isinstance(given, RunnableLambda):
        function = getattr(given, "func", None) or given.afunc
        documented = inspect.getdoc(function) if inspect.isroutine(function) else None
        return (documented or "").partition("\n\n")[0]
    if isinstance(given, Described) and isinstance(given.description, str) and given.description:
        return given.description
    own = given.name if isinstance(given, Runnable) and not isinstance(given, BaseChatModel) else None
    return own if own and own not in (name, UNNAMED_GRAPH) else ""


def _planner(given: AnyModel | Planner) -> Planner:
    return given if isinstance(given, Planner) else Planner(model=core_model(given))


def _planner_among(pool: WorkerPool) -> Planner:
    """The first worker that is a language model; an agent or a chain would do the task instead of planning it."""
    for worker in pool.values():
        if not isinstance(worker.model, RunnableModel):
            return Planner.from_worker(worker)
    raise ConfigError(f"none of {', '.join(pool)} can plan, as all are agents or chains; give planner=... a chat model")


def _profile(name: str) -> Profile:
    """The profile of this name; who swaps a chat model for a conductor may have left the model's name there."""
    try:
        return profile_named(name)
    except ConfigError as error:
        raise ConfigError(f"{error}; a model to work with goes into workers={{'name': 'provider:model'}}") from None


def found_of(
    workers: Mapping[str, AnyWorker] | None = None, planner: AnyModel | Planner | None = None
) -> DiscoveredPool:
    """`workers`, or what this machine offers, and who plans over it; their calls show in LangChain's traces.

    Raises:
        ConfigError: a worker or the planner can't be made.
    """
    if workers is None:
        found = discover()
        plans = _planner(planner) if planner else found.planner
    else:
        pool = pool_of(workers)
        plans = _planner(planner) if planner else _planner_among(pool)
        found = DiscoveredPool(pool, plans, ())
    return replace(found, planner=reported_planner(plans), pool=reported_pool(found.pool))


def named(profile: str | None) -> str:
    """What the Conductor calls itself as a model, such as `conductor-mini`."""
    return f"{NAME}-{profile}" if profile else NAME


def conductor_of(
    found: DiscoveredPool,
    *,
    profile: str | None = None,
    policy: Policy | None = None,
    limits: Limits | None = None,
    rounds: int | None = None,
    retries: int = 2,
) -> Conductor:
    """A Conductor over what `found_of` made.

    Args:
        found: who plans and who works.
        profile: `mini` or `ultra`.
        policy: what is allowed; else the usual.
        limits: what may be used; else the profile's, or the usual.
        rounds: in place of `limits.rounds`.
        retries: most repetitions of a call that failed for a reason that may pass.

    Raises:
        ConfigError: there is no such profile.
        PolicyError: no workflow at all may run.
    """
    chosen = _profile(profile) if profile else None
    made = Conductor.from_discovered(found, profile=chosen, policy=policy, limits=limits, name=named(profile))
    held = made.limits if rounds is None else made.limits.model_copy(update={"rounds": rounds})
    return made.replaced(limits=held, retries=retries)


def conducted(given: Conductor | Conducted | None) -> Conductor:
    """The Conductor of a `ChatConductor`, or a core one whose calls show in LangChain's traces; else a found one."""
    if given is None:
        return conductor_of(found_of())
    if isinstance(given, Conducted):
        return given.conductor
    if not isinstance(given, Conductor):
        raise ConfigError(f"{given!r} conducts nothing; give a ChatConductor or a Conductor")
    return given.replaced(planner=reported_planner(given.planner), pool=reported_pool(given.pool))
