"""The one bridge from sync code to the async inside.

One background event loop serves every sync caller of the process, so that connections opened by one
call are still good in the next. Async callers never come here.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future, wait
from functools import cache
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from rl_conductor.errors import ConfigError

T = TypeVar("T")

THREAD = "rl-conductor"


_one_starts_it = threading.Lock()


@cache
def _background_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=THREAD, daemon=True).start()
    return loop


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_background_loop.cache_clear)  # a fork leaves the thread behind


def is_background_thread() -> bool:
    """Whether this code runs on the background loop, on behalf of a sync caller."""
    return threading.current_thread().name == THREAD


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, awaited on the background loop. Ctrl-C cancels it and waits for its clean-up.

    Raises:
        ConfigError: called by code that runs on that loop itself, which would wait for itself for ever.
    """
    if is_background_thread():
        work.close()
        raise ConfigError("run_sync() inside of a run would never return; await the async method instead")
    with _one_starts_it:
        loop = _background_loop()
    outcome: Future[T] = Future()
    tasks: list[asyncio.Task[None]] = []

    def start() -> None:
        tasks.append(loop.create_task(_settled(outcome, work)))

    def cancel() -> None:
        tasks[0].cancel()

    loop.call_soon_threadsafe(start)
    try:
        return outcome.result()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(cancel)
        wait([outcome])
        raise


def iterate_sync(items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """`items`, for code that is not async, made on the background loop; leaving the loop early closes them.

    Raises:
        ConfigError: as `run_sync` does.
    """
    end = object()

    async def following() -> Any:
        return await anext(items, end)

    async def closed() -> None:
        await items.aclose()

    try:
        while (item := run_sync(following())) is not end:
            yield item
    finally:
        run_sync(closed())


async def _settled(outcome: Future[T], work: Coroutine[Any, Any, T]) -> None:
    """Await `work` and say what came of it, even `SystemExit`, which would end the loop before anybody is told."""
    try:
        outcome.set_result(await work)
    except BaseException as error:  # it is raised again in the thread that waits
        outcome.set_exception(error)


class PerLoop(Generic[T]):
    """One `T` for each event loop: what asyncio binds to a loop (clients, semaphores) can't cross to another."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()
        self._lock = threading.Lock()  # each loop is in a thread of its own

    def __reduce__(self) -> tuple[type[PerLoop[T]], tuple[Callable[[], T]]]:
        return type(self), (self._make,)  # elsewhere there are other loops

    def get(self) -> T:
        """The running loop's own `T`, made on first use."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._made:
                self._forget_the_dead()
                self._made[loop] = self._make()
            return self._made[loop]

    def drop(self) -> T | None:
        """Forget the running loop's `T` and return it, for closing."""
        with self._lock:
            self._forget_the_dead()
            return self._made.pop(asyncio.get_running_loop(), None)

    def _forget_the_dead(self) -> None:
        # An open connection holds its loop, so a weak key alone keeps the sockets of every `asyncio.run` for good.
        for reference in self._made.keyrefs():  # a snapshot: other threads' loops come and go meanwhile
            loop = reference()
            if loop is not None and loop.is_closed():
                self._made.pop(loop, None)
