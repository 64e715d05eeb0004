"""The one bridge from sync code to the async inside.

One background event loop serves every sync caller of the process, so that connections opened by one
call are still good in the next. Async callers never come here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


@cache
def _background_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rl-conductor", daemon=True).start()
    return loop


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, awaited on the background loop. Ctrl-C cancels it and waits for its clean-up."""
    future = asyncio.run_coroutine_threadsafe(work, _background_loop())
    with _cancelled_on_interrupt(future.cancel):
        return future.result()


@contextmanager
def _cancelled_on_interrupt(cancel: Callable[[], object]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        cancel()
        raise


class PerLoop(Generic[T]):
    """One `T` for each event loop: what asyncio binds to a loop (clients, semaphores) can't cross to another."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def get(self) -> T:
        """The running loop's own `T`, made on first use."""
        loop = asyncio.get_running_loop()
        if loop not in self._made:
            self._forget_the_dead()
            self._made[loop] = self._make()
        return self._made[loop]

    def drop(self) -> T | None:
        """Forget the running loop's `T` and return it, for closing."""
        self._forget_the_dead()
        return self._made.pop(asyncio.get_running_loop(), None)

    def _forget_the_dead(self) -> None:
        # An open connection holds its loop, so a weak key alone keeps the sockets of every `asyncio.run` for good.
        for reference in self._made.keyrefs():  # a snapshot: other threads' loops come and go meanwhile
            loop = reference()
            if loop is not None and loop.is_closed():
                self._made.pop(loop, None)
