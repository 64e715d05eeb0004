"""Admission control: limits concurrent runs, with a bounded queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from rl_conductor_server.errors import ApiError

MAX_RETRY_AFTER = 60.0
"""Maximum `Retry-After` of a rejected request, in seconds."""


class Admission:
    """Limits the runs in progress and the runs in the queue."""

    def __init__(self, max_running: int, max_waiting: int, *, on_queue: Callable[[int], None] = lambda _: None) -> None:
        """`on_queue` is called with the length of the queue whenever it changes."""
        self._on_queue = on_queue
        self._slots = asyncio.Semaphore(max_running)
        self._max_running = max_running
        self._max_waiting = max_waiting
        self.waiting = 0
        self._mean_seconds = 1.0

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None, None]:
        """Waits for a slot and occupies it for the duration of the block.

        Raises:
            ApiError: the queue is full.
        """
        await self._acquire()
        started = time.monotonic()
        try:
            yield
        finally:
            self._slots.release()
            self._mean_seconds += 0.1 * (time.monotonic() - started - self._mean_seconds)

    async def _acquire(self) -> None:
        if self._slots.locked() and self.waiting >= self._max_waiting:
            wait = self._mean_seconds * (self.waiting + 1) / self._max_running
            message = f"{self._max_running} runs are in progress and {self.waiting} are queued; try again later"
            raise ApiError(message, status=429, code="busy", retry_after=min(wait, MAX_RETRY_AFTER))
        self.waiting += 1
        self._on_queue(self.waiting)
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
            self._on_queue(self.waiting)
