"""`Contact`: whether this process was cut off from the database for longer than its leases last."""

from __future__ import annotations

import time


class Contact:
    """Tracks interruptions of this process's contact with the database."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._last: float | None = None
        self._began = float("-inf")

    def record(self) -> None:
        """Notes that the database answered; a gap of more than a lease counts as an interruption."""
        now = time.monotonic()
        if self._last is not None and now - self._last > self._lease > 0:
            self._began = now
        self._last = now

    @property
    def was_interrupted(self) -> bool:
        """Whether an interruption ended less than a lease ago."""
        return time.monotonic() - self._began < self._lease
