"""Calls runnables by their async or their sync methods, whichever work on the running event loop."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable, ensure_config

from rl_conductor.integration import call_async_or_sync, parts_of, stream_async_or_sync

SYNC_AND_ASYNC_FIELDS = (("func", "afunc"), ("func", "coroutine"), ("_transform", "_atransform"))
"""Fields in which LangChain's functions, graph nodes, tools and generators store their sync and async versions."""

GRAPH_PREFIXES = ("__", "checkpoint_")
"""The prefixes of the names in `configurable` by which LangGraph finds the place of a call in its graph."""


def callers_configurable() -> dict[str, Any]:
    """Returns the `configurable` of the current config, without the keys that only concern the surrounding graph."""
    values = ensure_config()["configurable"]
    return {name: value for name, value in values.items() if not name.startswith(GRAPH_PREFIXES)}


async def invoke(runnable: Runnable[Any, Any], value: Any, *, async_only: bool = False, **options: Any) -> Any:
    """Calls `runnable` with `value`. With `async_only`, it is awaited on any event loop."""
    sync = None if async_only else partial(runnable.invoke, value, **options)
    return await call_async_or_sync(partial(runnable.ainvoke, value, **options), sync)


def stream(
    runnable: Runnable[Any, Any], value: Any, *, async_only: bool = False, **options: Any
) -> AsyncGenerator[Any, None]:
    """Streams the output of `runnable`, choosing between async and sync methods as `invoke` does."""
    sync = None if async_only else partial(runnable.stream, value, **options)
    return stream_async_or_sync(partial(runnable.astream, value, **options), sync)


def has_graph(runnable: Runnable[Any, Any]) -> bool:
    """Whether `runnable` is or contains a LangGraph graph."""
    return any(_graphs_in(runnable))


def has_graph_without_thread(runnable: Runnable[Any, Any]) -> bool:
    """Whether `runnable` is or contains a graph with a checkpointer of its own that no thread is configured for."""
    return any(
        graph.checkpointer not in (None, True, False)
        and "thread_id" not in (graph.config or {}).get("configurable", {})
        for graph in _graphs_in(runnable)
    )


def _graphs_in(runnable: Runnable[Any, Any]) -> Iterator[Any]:
    pregel = sys.modules.get("langgraph.pregel")  # an extra
    return (part for _, part in parts_of(runnable) if pregel is not None and isinstance(part, pregel.Pregel))


def is_async_only(runnable: Runnable[Any, Any]) -> bool:
    """Whether a function, a graph node or a tool in `runnable` has an async version and no sync one."""
    return any(
        fields.get(async_name) is not None and fields.get(sync_name) is None
        for _, part in parts_of(runnable)
        if isinstance(part, Runnable)
        for fields in (vars(part),)
        for sync_name, async_name in SYNC_AND_ASYNC_FIELDS
    )
