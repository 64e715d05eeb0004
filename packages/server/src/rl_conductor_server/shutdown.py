"""The shutdown signal, with one deadline for everything in progress."""

from __future__ import annotations

import asyncio
import time


class ShutdownEvent(asyncio.Event):
    """Set when the server is told to stop; connections that only watch must close then."""

    def __init__(self, drain_seconds: float) -> None:
        super().__init__()
        self._drain_seconds = drain_seconds
        self._began_at: float | None = None

    def set(self) -> None:
        """Starts the shutdown; the time limit counts from the first call."""
        self._began_at = self._began_at or time.monotonic()
        super().set()

    @property
    def remaining_seconds(self) -> float:
        """Seconds until everything must have ended."""
        elapsed = time.monotonic() - self._began_at if self._began_at else 0.0
        return max(0.0, self._drain_seconds - elapsed)
