"""Pools of mixed workers: LlamaIndex's LLMs, query engines and retrievers, models by name, the core's own workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from llama_index.core.llms import LLM
from llama_index.core.tools import BaseTool, QueryEngineTool, RetrieverTool

from rl_conductor import Card, Conductor, DiscoveredPool, Model, Planner, Sampling, Worker, WorkerPool, discover, model
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool_file import WorkerEntry, worker_from
from rl_conductor.pool.worker import Described

from .llm_model import LLMModel
from .lookups import Lookup, QueryEngineModel, RetrieverModel
from .nested import Conducted, NestedModel

Alone = str | LLM | BaseQueryEngine | BaseRetriever | BaseTool | Model | Worker
"""What can work without more being said."""
AnyWorker = Alone | Mapping[str, Any]
"""What can work: `provider:model`, the thing itself, or an entry as in a pool file, whose `model` may be the thing."""
AnyWorkers = Mapping[str, AnyWorker] | Iterable[AnyWorker] | Alone
"""Workers by name, in a list, or just one."""


LOOKS_UP = "looks up what its own documents say; needs a self-contained question"
"""What the Conductor is told of an index that nothing else is known of."""


def named(workers: AnyWorkers) -> dict[str, AnyWorker]:
    """Workers by name; without names given, each goes by its own.

    Raises:
        ConfigError: two have one name, or these are no workers.
    """
    if isinstance(workers, Mapping):
        return dict(workers)
    if isinstance(workers, Alone):
        workers = [workers]
    if not isinstance(workers, Iterable):
        raise ConfigError(f"workers is a {type(workers).__name__}; write a list, or {{'name': worker, ...}}")
    found: dict[str, AnyWorker] = {}
    for worker in workers:
        name = _own_name(worker)
        if name in found:
            raise ConfigError(f"two workers are called {name!r}; give each a name of its own: {{'name': worker, ...}}")
        found[name] = worker
    return found


def pool_of(workers: AnyWorkers) -> WorkerPool:
    """A pool of workers of any kind.

    Raises:
        ConfigError: something in it can't work; the message says what to write instead.
    """
    return WorkerPool([worker_of(name, worker) for name, worker in named(workers).items()])


def worker_of(name: str, given: AnyWorker) -> Worker:
    """The worker that something is.

    Raises:
        ConfigError: it can't work; the message says what to write instead.
    """
    match given:
        case Worker():
            return replace(given, name=name, card=given.card.model_copy(update={"name": name}))
        case str():
            return Worker.of(name, given)
        case Mapping():
            return _from_entry(name, given)
    made = model_of(given, name=name)
    worker = Worker.of(name, made, card=Card(name=name, description=_own_description(given)))
    if isinstance(given, Conducted):
        return replace(worker, sampling=given.sampling)
    # How a LlamaIndex LLM is asked was settled where it was made, unless the caller asks for something else.
    return replace(worker, sampling=Sampling()) if isinstance(made, LLMModel) else worker


def model_of(given: AnyWorker, *, name: str) -> Model:
    """The model that something is.

    Raises:
        ConfigError: it is none; the message says what to write instead.
    """
    if isinstance(given, QueryEngineTool | RetrieverTool):
        given = given.query_engine if isinstance(given, QueryEngineTool) else given.retriever
    match given:
        case str():
            return model(given)
        case Conducted():
            return NestedModel(given)
        case LLM():
            return LLMModel(given)
        case BaseQueryEngine():
            return QueryEngineModel(given, name=name)
        case BaseRetriever():
            return RetrieverModel(given, name=name)
        case Model():
            return given
    raise ConfigError(
        f"{name!r} is a {type(given).__name__}, which can't work; write 'provider:model', a LlamaIndex LLM, "
        "an index's as_query_engine() or as_retriever(), or a Worker"
    )


def found_of(workers: AnyWorkers | None, planner: AnyWorker | Planner | None) -> DiscoveredPool:
    """`workers`, or what this machine offers, and who plans over it.

    Raises:
        ConfigError: one of them can't work; the message says what to write instead.
    """
    if workers is None:
        found = discover()
        return found if planner is None else replace(found, planner=_planner(planner))
    pool = pool_of(workers)
    return DiscoveredPool(pool, _planner_among(pool) if planner is None else _planner(planner), ())


def _planner(given: AnyWorker | Planner) -> Planner:
    refuse_descriptions("the planner", given)
    return given if isinstance(given, Planner) else Planner(model=model_of(given, name="planner"))


def _planner_among(pool: WorkerPool) -> Planner:
    """The first worker that is a language model."""
    for worker in pool.values():
        if not isinstance(worker.model, Lookup):
            return Planner.from_worker(worker)
    raise ConfigError("no worker is a language model that could plan; write planner='provider:model' or an LLM")


def context_window(worker: Worker) -> int:
    """Tokens that a worker is known to read and write in one call; LlamaIndex's default when nothing is known."""
    if isinstance(worker.model, NestedModel):
        return worker.model.conducted.metadata.context_window
    if worker.model.capabilities.context is not None:
        return worker.model.capabilities.context
    if isinstance(worker.model, Conductor):
        return min(map(context_window, worker.model.pool.values()))
    price = worker.model.price
    if price is None or not (price.input or price.output):  # no vendor's, so its name alone says nothing
        return DEFAULT_CONTEXT_WINDOW
    # Inside, because the data takes 0.3 s to import and only pools of vendors' models need it.
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415

    provider, _, name = worker.model.name.partition(":")
    try:
        known = get_snapshot().find_provider_model(name, None, provider, None)[1].context_window
    except LookupError:
        known = None
    return known or DEFAULT_CONTEXT_WINDOW


# ----------------------------------------------------------------------------------- as plain data


def described(given: object) -> Any:
    """A worker or planner as plain JSON, without secrets: its name or entry, else only what kind of thing it was."""
    match given:
        case None | str():
            return given
        case {"object": str(kind)}:
            return {"object": kind}
        case {"model": thing} if not isinstance(thing, str):
            return {"object": type(thing).__name__}
        case Mapping():
            return WorkerEntry.model_validate(given).model_dump(mode="json", exclude_defaults=True)
    return {"object": type(given).__name__}


def refuse_descriptions(what: str, given: object) -> None:
    """Raise `ConfigError` for what `described` could not write down."""
    if isinstance(given, Mapping) and given.keys() == {"object"}:
        cure = "name it 'provider:model', or give it again: Conductor.from_dict(data, workers=..., planner=...)"
        raise ConfigError(f"{what} was a {given['object']}, which can't be written down; {cure}")


def _from_entry(name: str, entry: Mapping[str, Any]) -> Worker:
    refuse_descriptions(f"worker {name!r}", entry)
    return worker_from(name, entry, worker_of)


def _own_description(given: object) -> str:
    match given:
        case QueryEngineTool() | RetrieverTool():
            return given.metadata.description
        case Described() if isinstance(given.description, str):
            return given.description
        case BaseQueryEngine() | BaseRetriever():
            return LOOKS_UP
    return ""


def _own_name(worker: AnyWorker) -> str:
    match worker:
        case str():
            return worker.partition(":")[2] or worker
        case Worker():
            return worker.name
        case LLM():
            return worker.metadata.model_name
        case BaseTool():
            return worker.metadata.get_name()
        case Model():
            return worker.name.partition(":")[2] or worker.name
    raise ConfigError(f"a {type(worker).__name__} has no name of its own; write {{'name': worker, ...}}")
