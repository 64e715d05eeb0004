"""Places for runs, and a queue of bounded length before them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rl_conductor_server.errors import ApiError

LONGEST_WAIT = 60.0
"""Seconds that a caller is told to wait at most."""


class Admission:
    """Who may run now, who must wait, and who must come back later."""

    def __init__(self, running: int, waiting: int) -> None:
        self._places = asyncio.Semaphore(running)
        self._running = running
        self._most_waiting = waiting
        self.waiting = 0
        self._mean_seconds = 1.0

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None, None]:
        """A place for one run.

        Raises:
            ApiError: the queue is full.
        """
        await self._wait()
        began = time.monotonic()
        try:
            yield
        finally:
            self._places.release()
            self._mean_seconds += 0.1 * (time.monotonic() - began - self._mean_seconds)

    async def _wait(self) -> None:
        if self._places.locked() and self.waiting >= self._most_waiting:
            wait = self._mean_seconds * (self.waiting + 1) / self._running
            message = f"{self._running} runs are under way and {self.waiting} wait; come back later"
            raise ApiError(message, status=429, code="busy", retry_after=min(wait, LONGEST_WAIT))
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
