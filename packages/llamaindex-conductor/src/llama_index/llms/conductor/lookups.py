"""Documents as workers: a query engine or a retriever of LlamaIndex as a `Model` of the core.

What it replies is bound by the policy like any worker's reply: `Flow(reader=..., source="hr")` keeps an index's text
from a worker. What the engine's own LLM uses is not in the trace; it is reported by that LLM itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import cached_property, partial
from typing import TypeVar

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from typing_extensions import override

from rl_conductor import Capabilities, Completion, Message, Price, Request, Usage
from rl_conductor._internal.blocking import call, in_thread
from rl_conductor.models.base import checked, priced, require
from rl_conductor.planning.prompts import prompt_in, subtask_in
from rl_conductor.types import FREE, Delta

from .blocking import blocks, uses_async
from .failures import translated

T = TypeVar("T")

NOTHING = "(nothing was found)"


class Lookup(ABC):
    """A model that answers from documents."""

    def __init__(self, source: object, *, name: str, price: Price | None) -> None:
        self._source = source
        self.name = f"llamaindex:{name}"
        self.price = price
        self.capabilities = Capabilities()

    @abstractmethod
    async def look_up(self, task: str, subtask: str) -> str:
        """What the documents say. `task` is all that the worker was told, `subtask` its own part of it."""

    async def _call(self, awaited: Callable[[], Awaitable[T]], blocking: Callable[[], T], *, no_async: bool) -> T:
        """Calls the method of the source that works on the running loop; with `no_async`, always the blocking one."""
        if no_async:
            return await in_thread(blocking)
        return await call(awaited, None if self._uses_async else blocking)

    @cached_property
    def _uses_async(self) -> bool:
        return uses_async(self._source)

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        require(self, request)
        task = prompt_in(request.messages)
        text = await self.look_up(task, subtask_in(task))
        usage = priced(Usage(), self.price)
        return checked(Completion(message=Message.assistant(text), usage=usage, model=self.name))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply in one piece."""
        completion = await self.complete(request)
        yield Delta(text=completion.text)
        yield Delta(completion=completion)

    async def aclose(self) -> None:  # noqa: B027
        """Nothing to close: the documents belong to whoever gave them."""


class QueryEngineModel(Lookup):
    """A query engine: retrieves by the words of the subtask, and reads all that the worker was told."""

    def __init__(self, engine: BaseQueryEngine, *, name: str = "query-engine", price: Price | None = None) -> None:
        """`price` is what a query costs; `None` leaves it unpriced."""
        super().__init__(engine, name=name, price=price)
        self._engine = engine

    @override
    async def look_up(self, task: str, subtask: str) -> str:
        """The engine's answer."""
        engine, asked = self._engine, QueryBundle(task, custom_embedding_strs=[subtask])
        no_async = isinstance(engine, CustomQueryEngine) and blocks(engine, "acustom_query", CustomQueryEngine)
        with translated(self.name, engine):
            return str(await self._call(partial(engine.aquery, asked), partial(engine.query, asked), no_async=no_async))


class RetrieverModel(Lookup):
    """A retriever: its passages, word for word, found by the words of the subtask. No language model is asked."""

    def __init__(self, retriever: BaseRetriever, *, name: str = "retriever") -> None:
        super().__init__(retriever, name=name, price=FREE)
        self._retriever = retriever

    @override
    async def look_up(self, task: str, subtask: str) -> str:
        """The passages that fit."""
        retriever = self._retriever
        no_async = blocks(retriever, "_aretrieve", BaseRetriever)
        awaited, blocking = partial(retriever.aretrieve, subtask), partial(retriever.retrieve, subtask)
        with translated(self.name, retriever):
            found = await self._call(awaited, blocking, no_async=no_async)
        return "\n\n".join(map(_passage, found)) or NOTHING


def _passage(node: NodeWithScore) -> str:
    return node.node.get_content(metadata_mode=MetadataMode.LLM)
