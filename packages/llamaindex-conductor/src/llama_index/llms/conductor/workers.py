"""Creates worker pools from LlamaIndex's LLMs, indexes, agents and tools, model names, and the core's own workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from llama_index.core.llms import LLM
from llama_index.core.tools import BaseTool, QueryEngineTool, RetrieverTool
from llama_index.core.workflow import Workflow

from rl_conductor import Card, Conductor, Model, Planner, Sampling, Worker, WorkerPool, model
from rl_conductor.errors import ConfigError
from rl_conductor.integration import (
    Described,
    WorkerEntry,
    WorkerFunction,
    is_worker_function,
    worker_from,
)

from .models.agents import AgentModel, ChatEngineModel, WorkflowModel, agent_name
from .models.llm_model import LLMModel
from .models.nested_conductor import ConductorHost, NestedConductorModel
from .models.results import LlamaIndexFunction
from .models.retrieval import QueryEngineModel, RetrieverModel
from .models.task_model import TaskModel

SingleWorker = str | LLM | BaseQueryEngine | BaseRetriever | BaseChatEngine | Workflow | BaseTool | Model | Worker
"""A worker without further settings: `provider:model`, or an object."""
WorkerLike = SingleWorker | WorkerFunction | Mapping[str, Any]
"""A worker, a function, or an entry as in a pool file, whose `model` may be an object."""
WorkersLike = Mapping[str, WorkerLike] | Iterable[WorkerLike] | SingleWorker
"""Workers by name, in a list, or a single one."""

WRAPPERS: tuple[tuple[Any, Callable[[Any, str], Model]], ...] = (
    (ConductorHost, lambda host, _: NestedConductorModel(host)),
    (LLM, lambda llm, _: LLMModel(llm)),
    (BaseQueryEngine, lambda engine, name: QueryEngineModel(engine, name=name)),
    (BaseRetriever, lambda retriever, name: RetrieverModel(retriever, name=name)),
    (BaseChatEngine, lambda engine, name: ChatEngineModel(engine, name=name)),
    (BaseWorkflowAgent | AgentWorkflow, lambda agent, name: AgentModel(agent, name=name)),
    (Workflow, lambda workflow, name: WorkflowModel(workflow, name=name)),
)
"""The model of each kind of object; the first kind that matches is used."""

MIN_CONTEXT_PER_OUTPUT = 4
"""A worker's context window has at least this many times the tokens that are reserved for its reply."""

INDEX_DESCRIPTION = "looks up what its own documents say; needs a self-contained question"
"""Description of an index without one of its own, for the planner."""


def name_workers(workers: WorkersLike) -> dict[str, WorkerLike]:
    """Returns workers by name; workers in a list get their own names.

    Raises:
        ConfigError: two have the same name, or an object is not a worker.
    """
    if isinstance(workers, Mapping):
        return dict(workers)
    if isinstance(workers, SingleWorker):
        workers = [workers]
    if not isinstance(workers, Iterable):
        raise ConfigError(f"workers is a {type(workers).__name__}; write a list, or {{'name': worker, ...}}")
    by_name: dict[str, WorkerLike] = {}
    for worker in workers:
        name = _own_name(worker)
        if name in by_name:
            raise ConfigError(f"two workers are called {name!r}; give each its own name: {{'name': worker, ...}}")
        by_name[name] = worker
    return by_name


def pool_of(workers: WorkersLike) -> WorkerPool:
    """Creates a pool from workers of any kind.

    Raises:
        ConfigError: a worker is unusable; the message says what to write instead.
    """
    return WorkerPool([create_worker(name, worker) for name, worker in name_workers(workers).items()])


def create_worker(name: str, worker: WorkerLike) -> Worker:
    """Converts a worker of any kind to one of the core, with this name.

    Raises:
        ConfigError: it is unusable; the message says what to write instead.
    """
    match worker:
        case Worker():
            return worker.renamed(name)
        case str():
            return Worker.of(name, worker)
        case Mapping():
            return _from_entry(name, worker)
    worker_model = create_model(worker, name=name)
    card = Card(name=name, description=_own_description(worker))
    return _with_own_settings(Worker.of(name, worker_model, card=card), worker)


def _with_own_settings(created: Worker, source: object) -> Worker:
    """Gives a worker the settings of the object that it was made from."""
    worker_model = created.model
    if isinstance(source, ConductorHost):
        return replace(created, sampling=source.sampling)
    # LlamaIndex's LLMs come with their own settings; the budget only has to know the maximum length of a reply.
    if isinstance(worker_model, LLMModel):
        return replace(created, sampling=Sampling(max_tokens=worker_model.max_tokens))
    if isinstance(worker_model, TaskModel | LlamaIndexFunction) and worker_model.is_priced_by_calls:
        return replace(created, card=created.card.model_copy(update={"price": None}))
    return created


def create_model(worker: WorkerLike, *, name: str) -> Model:
    """Converts a worker or planner to a model of the core; `name` appears in traces and errors.

    Raises:
        ConfigError: it is not a model; the message says what to write instead.
    """
    if isinstance(worker, QueryEngineTool | RetrieverTool):
        worker = worker.query_engine if isinstance(worker, QueryEngineTool) else worker.retriever
    if isinstance(worker, str):
        return model(worker)
    for kind, wrap in WRAPPERS:
        if isinstance(worker, kind):
            return wrap(worker, name)
    if isinstance(worker, Model):
        return worker
    if callable(worker) and is_worker_function(worker):
        return LlamaIndexFunction(worker)
    raise ConfigError(
        f"{name!r} is a {type(worker).__name__}, which is not a worker; write 'provider:model', a LlamaIndex LLM or "
        "agent, an index's as_query_engine() or as_retriever(), a function, or a Worker"
    )


def create_planner(planner: WorkerLike | Planner) -> Planner:
    """Converts a planner of any kind to one of the core.

    Raises:
        ConfigError: it is not a model; the message says what to write instead.
    """
    reject_placeholder("the planner", planner)
    if isinstance(planner, Mapping):
        priced_model = "LLMModel(llm, price=Price(input=2.5, output=10))"
        raise ConfigError(f"the planner is a dict; write the model alone, or with a price {priced_model}")
    return Planner.of(planner if isinstance(planner, Planner) else create_model(planner, name="planner"))


def context_window(worker: Worker) -> int:
    """Returns the tokens that a worker can read and write in one call, or LlamaIndex's default if that is unknown."""
    return _known_context(worker) or DEFAULT_CONTEXT_WINDOW


def max_output_tokens(worker: Worker) -> int | None:
    """Returns the maximum tokens of a worker's reply; `None` if it or the worker's context window is unknown."""
    if isinstance(worker.model, NestedConductorModel):
        return worker.model.host.metadata.num_output
    if isinstance(worker.model, LLMModel):
        num_output = worker.model.llm.metadata.num_output
        return num_output if num_output > 0 else None
    context = _known_context(worker)
    if context is None or worker.sampling.max_tokens is None:
        return None
    return min(worker.sampling.max_tokens, context // MIN_CONTEXT_PER_OUTPUT)


def _known_context(worker: Worker) -> int | None:
    if isinstance(worker.model, NestedConductorModel):
        return worker.model.host.metadata.context_window
    if worker.model.capabilities.context is not None:
        return worker.model.capabilities.context
    if isinstance(worker.model, Conductor):
        return min(map(context_window, worker.model.pool.values()))
    price = worker.model.price
    if price is None or price.is_free:  # not a vendor's model, so its name alone means nothing
        return None
    # Inside, because the data takes 0.3 s to import and only pools of vendors' models need it.
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415

    provider, _, name = worker.model.name.partition(":")
    try:
        return get_snapshot().find_provider_model(name, None, provider, None)[1].context_window
    except LookupError:
        return None


# ----------------------------------------------------------------------------------- serialisation


def describe_worker(worker: object) -> Any:
    """Converts a worker or planner to plain JSON without secrets: its name or entry, or the class of an object."""
    match worker:
        case None | str():
            return worker
        case {"object": str(class_name)}:
            return {"object": class_name}
        case {"model": worker_model} if not isinstance(worker_model, str):
            return {"object": type(worker_model).__name__}
        case Mapping():
            return WorkerEntry.model_validate(worker).model_dump(mode="json", exclude_defaults=True)
    return {"object": type(worker).__name__}


def reject_placeholder(subject: str, value: object, *, option: str = "") -> None:
    """Raises `ConfigError` for the name that serialisation writes in place of an object, passed again as `option`."""
    if isinstance(value, Mapping) and value.keys() == {"object"}:
        cure = f"pass it again: Conductor.from_dict(data, {option or 'workers=..., planner'}=...)"
        cure = cure if option else f"use 'provider:model', or {cure}"
        raise ConfigError(f"{subject} was a {value['object']}, which can't be serialised; {cure}")


def _from_entry(name: str, entry: Mapping[str, Any]) -> Worker:
    reject_placeholder(f"worker {name!r}", entry)
    return worker_from(name, entry, create_worker)


def _own_description(worker: object) -> str:
    match worker:
        case QueryEngineTool() | RetrieverTool():
            return worker.metadata.description
        case BaseWorkflowAgent() | Workflow():
            return ""  # its model gives it
        case Described() if isinstance(worker.description, str):
            return worker.description
        case BaseQueryEngine() | BaseRetriever():
            return INDEX_DESCRIPTION
        case BaseChatEngine() if hasattr(worker, "_retriever") or hasattr(worker, "_query_engine"):
            return INDEX_DESCRIPTION
    return ""


def _own_name(worker: WorkerLike) -> str:
    match worker:
        case str():
            return worker.partition(":")[2] or worker
        case Worker():
            return worker.name
        case LLM():
            return worker.metadata.model_name
        case BaseTool():
            return worker.metadata.get_name()
        case Workflow():
            return agent_name(worker)
        case Model():
            return worker.name.partition(":")[2] or worker.name
    raise ConfigError(f"a {type(worker).__name__} has no name of its own; write {{'name': worker, ...}}")
