"""`RunQueue`: limits concurrent runs, with a bounded queue that API keys share fairly."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rl_conductor_server.errors import ApiError
from rl_conductor_server.transport.key_share import limit_of_key, release

MAX_RETRY_AFTER = 60.0
"""Maximum `Retry-After` of a rejected request, in seconds."""


@dataclass(eq=False)
class _Waiter:
    """A run in the queue."""

    key: str
    admitted: asyncio.Future[None]


class RunQueue:
    """Limits the runs in progress and the runs in the queue.

    A free slot goes to the key with the fewest runs in progress; among several, keys take turns. If there are other
    keys, a key gets at most `KEY_SHARE` of the slots, so that long runs of one leave some to the others. If the queue
    is full, the key with the most runs in it gives up its newest one for a key with fewer, so that no key can keep the
    others out, however much it sends.
    """

    def __init__(
        self,
        max_running: int,
        max_waiting: int,
        *,
        is_shared: Callable[[], bool] = lambda: False,
        on_queue: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Creates a queue without runs.

        Args:
            max_running: the number of slots.
            max_waiting: the length of the queue.
            is_shared: returns whether there is more than one key.
            on_queue: called with the length of the queue whenever it changes.
        """
        self._is_shared = is_shared
        self._on_queue = on_queue
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._running = Counter[str]()
        self._turns: dict[str, int] = {}
        """The number of the last admission of each key that had one since the queue was last empty."""
        self._admissions = 0
        self._waiters: list[_Waiter] = []
        self._mean_seconds = 1.0

    @property
    def waiting(self) -> int:
        """The number of runs in the queue."""
        return len(self._active)

    @property
    def _active(self) -> list[_Waiter]:
        """The queue without runs that were cancelled a moment ago."""
        return [waiter for waiter in self._waiters if not waiter.admitted.done()]

    @asynccontextmanager
    async def slot(self, key: str) -> AsyncGenerator[None, None]:
        """Waits for a slot for a run of an API key and occupies it for the duration of the block.

        Raises:
            ApiError: the queue is full, or other keys need the room in it.
        """
        self._admit_waiting()  # several may have room since the other keys were revoked
        if self._has_slot(key):
            self._admit(key)
        else:
            await self._wait(key)
        started = time.monotonic()
        try:
            yield
        finally:
            self._release(key)
            self._mean_seconds += 0.1 * (time.monotonic() - started - self._mean_seconds)

    def _has_slot(self, key: str) -> bool:
        """Returns whether a run of a key may begin."""
        limit = max(1, limit_of_key(self._max_running, is_shared=self._is_shared()))
        return self._running[key] < limit and self._running.total() < self._max_running

    async def _wait(self, key: str) -> None:
        if self.waiting >= self._max_waiting:
            self._make_room(key)
        waiter = _Waiter(key, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._on_queue(self.waiting)
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._remove(waiter)
            elif waiter.admitted.done() and not waiter.admitted.cancelled() and waiter.admitted.exception() is None:
                self._release(key)
            raise

    def _make_room(self, key: str) -> None:
        """Rejects the newest waiting run of the key with the most. Raises `ApiError` if that is no other key."""
        counts = Counter(waiter.key for waiter in self._active)
        heaviest, count = max(counts.items(), key=lambda item: item[1], default=(key, 0))
        if count <= counts[key] + 1:
            raise self._busy()
        newest = next(waiter for waiter in reversed(self._active) if waiter.key == heaviest)
        self._remove(newest)
        newest.admitted.set_exception(self._busy())

    def _release(self, key: str) -> None:
        """Frees a slot of a key, and admits the next run."""
        release(self._running, key)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        """Admits the runs in the queue that have a slot."""
        while active := self._active:
            waiter = min(active, key=lambda each: (self._running[each.key], self._turns.get(each.key, 0)))
            if not self._has_slot(waiter.key):
                break
            self._remove(waiter)
            self._admit(waiter.key)
            waiter.admitted.set_result(None)

    def _admit(self, key: str) -> None:
        self._running[key] += 1
        if not self._waiters:  # nobody waits for a turn
            self._turns.clear()
        self._admissions += 1
        self._turns[key] = self._admissions

    def _remove(self, waiter: _Waiter) -> None:
        self._waiters.remove(waiter)
        self._on_queue(self.waiting)

    def _busy(self) -> ApiError:
        wait = self._mean_seconds * (self.waiting + 1) / self._max_running
        message = f"{self._running.total()} runs are in progress and {self.waiting} are queued; try again later"
        return ApiError(message, status=429, code="busy", retry_after=min(wait, MAX_RETRY_AFTER))
