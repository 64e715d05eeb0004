"""Calls runnables by their async or their sync methods, whichever work on the running event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable

from rl_conductor._internal import blocking
from rl_conductor.models.redaction import parts_of

SYNC_AND_ASYNC = (("func", "afunc"), ("func", "coroutine"), ("_transform", "_atransform"))
"""Where LangChain's functions, nodes of graphs, tools and generators keep their two versions."""


async def invoke(runnable: Runnable[Any, Any], value: Any, *, async_only: bool = False, **options: Any) -> Any:
    """The output of `runnable` for `value`. With `async_only`, it is awaited on any event loop."""
    sync = None if async_only else partial(runnable.invoke, value, **options)
    return await blocking.call(partial(runnable.ainvoke, value, **options), sync)


def stream(
    runnable: Runnable[Any, Any], value: Any, *, async_only: bool = False, **options: Any
) -> AsyncGenerator[Any, None]:
    """The output of `runnable` in pieces, by the methods that `invoke` would use."""
    sync = None if async_only else partial(runnable.stream, value, **options)
    return blocking.stream(partial(runnable.astream, value, **options), sync)


def is_async_only(runnable: Runnable[Any, Any]) -> bool:
    """Whether a function, a node of a graph or a tool in `runnable` has an async version and no sync one."""
    return any(
        fields.get(async_name) is not None and fields.get(sync_name) is None
        for _, part in parts_of(runnable)
        if isinstance(part, Runnable)
        for fields in (vars(part),)
        for sync_name, async_name in SYNC_AND_ASYNC
    )
