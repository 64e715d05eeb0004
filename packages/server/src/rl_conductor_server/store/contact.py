"""`Contact`: whether leases may have expired although their processes live."""

from __future__ import annotations

import time


class Contact:
    """Tracks interruptions: this process had no contact with the database for a while, or the database's clock jumped.

    Then leases of other processes may have expired, too, and they first get the time of a lease to renew them.
    """

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

    def check_clock(self, jump: float) -> None:
        """Notes by how many seconds the database's clock jumped, as when a virtual machine resumes."""
        if abs(jump) > self._lease / 2 > 0:
            self._began = time.monotonic()

    @property
    def was_interrupted(self) -> bool:
        """Whether an interruption ended less than a lease ago."""
        return time.monotonic() - self._began < self._lease
