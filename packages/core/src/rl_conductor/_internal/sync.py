"""Runs coroutines and async generators for sync callers.

One background event loop serves every sync caller of the process, so that connections opened by one call can be
reused by the next. Async callers don't use it.

anyio's blocking portal doesn't fit: it abandons cancelled work instead of waiting for its clean-up, and a `SystemExit`
in one call stops the portal for all later ones.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import Future, wait
from functools import cache
from typing import Any, TypeVar

from rl_conductor.errors import ConfigError

T = TypeVar("T")

THREAD = "rl-conductor"

_start_lock = threading.Lock()


@cache
def _background_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=_run, args=(loop,), name=THREAD, daemon=True).start()
    return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs the loop, also after a task has raised one of these errors, which stop the loop and are its result."""
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue
        return


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_background_loop.cache_clear)  # threads don't survive a fork


def is_background_thread() -> bool:
    """Returns whether this code runs on the background loop, on behalf of a sync caller."""
    thread = threading.current_thread()
    return thread.name == THREAD and thread is not threading.main_thread()  # as it is in a child that it forks


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work` on the background loop and returns its result. Ctrl-C cancels it and waits for its clean-up.

    Raises:
        ConfigError: called on the background loop itself, which would deadlock.
    """
    if is_background_thread():
        work.close()
        raise ConfigError("run_sync() inside of a run would never return; await the async method instead")
    with _start_lock:
        loop = _background_loop()
    outcome: Future[T] = Future()
    tasks: list[asyncio.Task[None]] = []

    def start() -> None:
        tasks.append(loop.create_task(_resolve(outcome, work)))

    def cancel() -> None:
        if tasks:
            tasks[0].cancel()
        else:  # interrupted before the start was scheduled
            work.close()
            outcome.cancel()

    try:
        loop.call_soon_threadsafe(start)
        return outcome.result()
    except KeyboardInterrupt:
        # One turn of the loop later, because a task that is cancelled before its first step never sets `outcome`.
        loop.call_soon_threadsafe(loop.call_soon, cancel)
        wait([outcome])
        raise


def iterate_sync(items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Iterates over `items` on the background loop; leaving the `for` loop early closes them.

    Raises:
        ConfigError: called on the background loop itself.
    """
    end = object()

    async def next_item() -> Any:
        return await anext(items, end)

    async def close() -> None:
        await items.aclose()

    try:
        while (item := run_sync(next_item())) is not end:
            yield item
    finally:
        run_sync(close())


async def _resolve(outcome: Future[T], work: Coroutine[Any, Any, T]) -> None:
    """Stores the result or the error of `work`, even `SystemExit`, which would otherwise end the loop."""
    try:
        outcome.set_result(await work)
    except BaseException as error:  # re-raised in the waiting thread
        outcome.set_exception(error)
