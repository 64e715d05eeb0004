"""`SharedEngines`: one engine for all models with the same weights and options."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class Engine(Protocol):
    """Weights that take memory until they are closed."""

    def close(self) -> None:
        """Frees the memory. Blocks."""


S = TypeVar("S")
E = TypeVar("E", bound=Engine)


class SharedEngines(Generic[S, E]):
    """Creates an engine for the first model that leases it, and closes it after the last."""

    def __init__(self, create: Callable[[S], E], *, key: Callable[[S], Hashable]) -> None:
        """`create` makes an engine from its setup; those with the same `key` share one."""
        self._create = create
        self._key = key
        self._engines: dict[Hashable, E] = {}
        self._users = Counter[E]()
        self._lock = threading.Lock()

    def lease(self, setup: S) -> E:
        """Returns the shared engine for `setup`; the caller must `release` it."""
        key = self._key(setup)
        with self._lock:
            if key not in self._engines:
                self._engines[key] = self._create(setup)
            engine = self._engines[key]
            self._users[engine] += 1
            return engine

    def release(self, engine: E) -> None:
        """Releases a leased engine; the last release closes it, which blocks."""
        with self._lock:
            self._users[engine] -= 1
            if self._users[engine]:
                return
            del self._users[engine]
            self._engines = {key: other for key, other in self._engines.items() if other is not engine}
        engine.close()

    def close_all(self) -> None:
        """Closes all engines, also leased ones. Blocks."""
        with self._lock:
            engines = list(self._engines.values())
            self._engines.clear()
            self._users.clear()
        for engine in engines:
            engine.close()
