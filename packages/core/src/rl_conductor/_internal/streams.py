"""The one bridge from work that tells what happens, by calling a function, to an async iterator of what it told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

Telling = Callable[[Callable[[T], None]], Coroutine[Any, Any, object]]
"""Work that passes whatever it has to tell to the function that it is given."""


async def as_told(work: Telling[T], *, context: Context | None = None) -> AsyncGenerator[T, None]:
    """What `work` tells, as it tells it; at the end, raises what the work raised.

    Closing the iterator cancels the work and waits for its clean-up.

    Args:
        work: what is done, in a task of its own. It never waits for the reader.
        context: what that task runs in; else in a copy of the caller's.
    """
    queue: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
    task = asyncio.create_task(work(lambda item: queue.put_nowait((item,))), context=context)
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (told := await queue.get()) is not None:
            yield told[0]
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
