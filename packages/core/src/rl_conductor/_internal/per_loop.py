"""`PerLoop`: keeps one object for each event loop, such as a client or a semaphore, which asyncio binds to its loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Keeps one `T` per event loop, for objects that asyncio binds to a loop (clients, semaphores)."""

    def __init__(self, factory: Callable[[], T]) -> None:
        self._factory = factory
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()
        self._lock = threading.Lock()  # each loop runs in its own thread

    def __reduce__(self) -> tuple[type[PerLoop[T]], tuple[Callable[[], T]]]:
        return type(self), (self._factory,)  # other processes have other loops

    def get(self) -> T:
        """Returns the `T` of the running loop, created on first use."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._by_loop:
                self._drop_closed_loops()
                self._by_loop[loop] = self._factory()
            return self._by_loop[loop]

    def drop(self) -> T | None:
        """Removes the `T` of the running loop and returns it, for closing."""
        with self._lock:
            self._drop_closed_loops()
            return self._by_loop.pop(asyncio.get_running_loop(), None)

    def _drop_closed_loops(self) -> None:
        # An open connection references its loop, so weak keys alone would leak the sockets of every `asyncio.run`.
        for reference in self._by_loop.keyrefs():  # a snapshot, since other threads change the set
            loop = reference()
            if loop is not None and loop.is_closed():
                self._by_loop.pop(loop, None)
