"""Query engines and retrievers as models of the core.

A policy restricts their replies like those of any worker: `Flow(reader=..., source="hr")` keeps an index's text from a
worker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import TypeVar

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import RESPONSE_TYPE, AsyncStreamingResponse, StreamingResponse
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.schema import QueryBundle
from typing_extensions import override

from rl_conductor import Price, Request
from rl_conductor.integration import call_async_or_sync, in_thread, prompt_in, subtask_in
from rl_conductor.types import FREE

from .async_support import inherits_method, uses_async
from .errors import translate_errors
from .held_llms import holds_llm
from .results import passages
from .task_model import S, TaskModel, TaskResult

T = TypeVar("T")


class RetrievalModel(TaskModel[S]):
    """Base class of models that answer from documents."""

    async def _call(self, async_method: Callable[[], Awaitable[T]], sync_method: Callable[[], T], *, sync: bool) -> T:
        """Calls the method that works on the running event loop; with `sync`, always the sync one, in a thread."""
        if sync:
            return await in_thread(sync_method)
        return await call_async_or_sync(async_method, None if self._uses_async else sync_method)

    @cached_property
    def _uses_async(self) -> bool:
        return uses_async(self.source)


class QueryEngineModel(RetrievalModel[BaseQueryEngine]):
    """A query engine. It retrieves with the subtask, and its LLM reads the worker's whole prompt."""

    def __init__(self, engine: BaseQueryEngine, *, name: str = "query-engine", price: Price | None = None) -> None:
        """`price` is the price of a query; `None` leaves it unpriced."""
        super().__init__(engine, name=name, price=price)

    @override
    async def run_task(self, request: Request) -> TaskResult:
        prompt = prompt_in(request.messages)
        engine, query = self.source, QueryBundle(prompt, custom_embedding_strs=[subtask_in(prompt)])
        sync = isinstance(engine, CustomQueryEngine) and inherits_method(engine, "acustom_query", CustomQueryEngine)
        with translate_errors(self.name, engine):
            response = await self._call(partial(engine.aquery, query), partial(engine.query, query), sync=sync)
            return await _task_result(response)


class RetrieverModel(RetrievalModel[BaseRetriever]):
    """A retriever. It searches with the subtask and returns the passages verbatim. It is free if it holds no LLM."""

    def __init__(self, retriever: BaseRetriever, *, name: str = "retriever") -> None:
        super().__init__(retriever, name=name, price=None if holds_llm(retriever) else FREE)

    @override
    async def run_task(self, request: Request) -> TaskResult:
        retriever, query = self.source, subtask_in(prompt_in(request.messages))
        sync = inherits_method(retriever, "_aretrieve", BaseRetriever)
        with translate_errors(self.name, retriever):
            nodes = await self._call(partial(retriever.aretrieve, query), partial(retriever.retrieve, query), sync=sync)
        return TaskResult(passages(nodes), tuple(nodes))


async def _task_result(response: RESPONSE_TYPE) -> TaskResult:
    if isinstance(response, AsyncStreamingResponse):  # whose `str()` would start an event loop inside the running one
        response = await response.get_response()
    elif isinstance(response, StreamingResponse):
        response = await in_thread(response.get_response)
    nodes = tuple(response.source_nodes)
    node_ids = {node.node_id for node in nodes}  # engines repeat the metadata of each node under its id
    metadata = {key: value for key, value in (response.metadata or {}).items() if key not in node_ids}
    # Without an answer, `str()` is "None"; an empty reply is a failure, so that another worker takes the step.
    return TaskResult(str(response) if response.response else "", nodes, metadata)
