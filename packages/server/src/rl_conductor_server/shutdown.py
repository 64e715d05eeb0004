"""That the server was told to stop, and how long everything in flight may still take: one deadline for all of it."""

from __future__ import annotations

import asyncio
import time


class Stopping(asyncio.Event):
    """Set as soon as the server is told to stop: who only listens must leave."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._told: float | None = None

    def set(self) -> None:
        """Stop; the time that is left runs from the first time on."""
        self._told = self._told or time.monotonic()
        super().set()

    @property
    def left(self) -> float:
        """Seconds until all must be at its end."""
        passed = time.monotonic() - self._told if self._told else 0.0
        return max(0.0, self._seconds - passed)
