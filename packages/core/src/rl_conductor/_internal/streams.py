"""Async iterators: from a callback API, with a timeout, and until they fall silent.

A task and a queue rather than anyio's task group and memory stream, because a task group wraps errors in groups, can't
run in a given context, and must not be open across the `yield` of a generator.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

CallbackFunction = Callable[[Callable[[T], None]], Coroutine[Any, Any, object]]
"""An async function that reports items by calling the callback passed to it."""


async def callback_to_async_iterator(
    work: CallbackFunction[T], *, context: Context | None = None
) -> AsyncGenerator[T, None]:
    """Runs `work` in a task and yields each item that it passes to its callback.

    An error of `work` is raised after the last item. Closing the iterator cancels `work` and waits for its clean-up.

    Args:
        work: the function to run. It never waits for the consumer.
        context: the context of its task; by default a copy of the caller's.
    """
    queue: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.create_task(work(queue.put_nowait), context=context)
    task.add_done_callback(queue.put_nowait)  # the finished task itself marks the end
    try:
        while (item := await queue.get()) is not task:
            yield item
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def within(seconds: float | None, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yields from `items` and closes it; raises `TimeoutError` after `seconds`, including the consumer's time."""
    deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
    async with aclosing(items):
        while True:
            # A timeout around the whole loop could cancel the consumer between two items.
            async with asyncio.timeout_at(deadline):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item


async def until_silent(seconds: float, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yields from `items` until it has ended or none came for `seconds`, and closes it."""
    async with aclosing(items):
        while True:
            silence = asyncio.timeout(seconds)
            try:
                async with silence:
                    item = await anext(items)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if silence.expired():
                    return
                raise
            yield item
