"""Calls a host framework's models on any event loop: awaits them on one loop, and runs their sync methods in threads.

Async HTTP clients pool connections, and a connection works only on the event loop that opened it. Frameworks share one
client among all models of a vendor, so a second loop gets "Event loop is closed" or "bound to a different event loop",
often after its request was sent and billed. Therefore one loop of the process, the first that asks, awaits async
methods. Every other loop, such as the background loop that serves sync callers, calls the sync methods in threads.

These are daemon threads of our own rather than anyio's workers, because an abandoned worker keeps the process from
exiting, and only 40 of them run at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import aclosing, suppress
from contextvars import copy_context
from typing import TypeVar
from weakref import WeakSet, ref

from rl_conductor._internal.sync import is_background_thread

T = TypeVar("T")

_LOOP_ERRORS = ("event loop is closed", "bound to a different event loop", "attached to a different loop")

_lock = threading.Lock()
_client_loop: ref[asyncio.AbstractEventLoop] | None = None
"""Open connections keep their loop alive, so once this loop is collected another one can replace it."""
_excluded_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def can_await_clients() -> bool:
    """Returns whether async methods of a host's models may be awaited on the running loop."""
    global _client_loop  # noqa: PLW0603  (one for each process, as the clients are)
    if is_background_thread():
        return False
    loop = asyncio.get_running_loop()
    with _lock:
        if loop in _excluded_loops:
            return False
        if _client_loop is None or _client_loop() is None:
            _client_loop = ref(loop)
        return _client_loop() is loop


def exclude_running_loop() -> None:
    """Stops awaiting async methods on the running loop, because a client turned out to be bound to another one."""
    with _lock:
        _excluded_loops.add(asyncio.get_running_loop())


def is_loop_error(error: BaseException | None) -> bool:
    """Returns whether `error`, or an error that caused it, says that a client is bound to another event loop."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _LOOP_ERRORS):
            return True
        error = error.__cause__ or error.__context__
    return False


async def call_async_or_sync(async_method: Callable[[], Awaitable[T]], sync_method: Callable[[], T] | None) -> T:
    """Awaits `async_method` on the loop that may await clients; elsewhere runs `sync_method` in a thread.

    Where there is no sync method (`None`, or the library raises `NotImplementedError`), any loop awaits `async_method`.
    """
    if sync_method is not None and not can_await_clients():
        with suppress(NotImplementedError):
            return await in_thread(sync_method)
    return await async_method()


async def stream_async_or_sync(
    async_method: Callable[[], AsyncIterator[T]], sync_method: Callable[[], Iterable[T]] | None
) -> AsyncGenerator[T, None]:
    """Iterates over either method, chosen as in `call_async_or_sync`. Closing this generator closes the chosen one."""
    if sync_method is not None and not can_await_clients():
        started = False
        try:
            async with aclosing(iterate_in_thread(sync_method)) as sync_items:
                async for item in sync_items:
                    started = True
                    yield item
        except NotImplementedError:
            if started:
                raise
        else:
            return
    items = async_method()
    try:
        async for item in items:
            yield item
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


async def in_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a new thread, in a copy of the current context, and returns its result.

    Cancelling drops the result but can't stop the thread. An abandoned thread does not keep the process from exiting.
    """
    (result,) = [result async for result in iterate_in_thread(lambda: [work()])]
    return result


async def iterate_in_thread(work: Callable[[], Iterable[T]]) -> AsyncGenerator[T, None]:
    """Iterates over the return value of `work` in a new thread, in a copy of the current context.

    Closing this generator ends the iteration at the next item, and closes the generator that `work` returned.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[T] | BaseException | None] = asyncio.Queue()
    closed = threading.Event()

    def send(item: tuple[T] | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed, so there is no consumer any more
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def iterate() -> None:
        try:
            items = work()
            for item in items:
                send((item,))
                if closed.is_set():
                    break
            if isinstance(items, Generator):
                items.close()
        except BaseException as error:  # re-raised in the consumer
            send(error)
        else:
            send(None)

    threading.Thread(target=copy_context().run, args=(iterate,), name="rl-conductor-call", daemon=True).start()
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        closed.set()
