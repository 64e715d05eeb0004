"""The database's clock, by which all processes agree on leases and periods, however wrong their own clocks are."""

from __future__ import annotations

import time

MAX_STEP_BACK = 60.0
"""Seconds by which the database's time may go back while that of a `DatabaseClock` waits for it; a correction of its
clock by more is followed at once, because budgets and retention go by it."""
TICK = 1e-6
"""Seconds between two times while the clock waits: the least that a column keeps apart."""


class DatabaseClock:
    """Estimates the database's current time between two readings of it; no time is the same as an earlier one, or less.

    Readings arrive late, each by another delay, so the estimate may jump back at a reading. Runs are sorted by when
    they began, and the order of two of them must not depend on that.
    """

    def __init__(self, now: float) -> None:
        self._latest = float("-inf")
        self.set(now, read_at=time.monotonic())

    def set(self, now: float, *, read_at: float) -> None:
        """Adopts a time that the database returned, at `read_at` on the clock of `time.monotonic`."""
        self._offset = now - read_at

    def jump_to(self, now: float, *, read_at: float) -> float:
        """Returns by how many seconds a reading is ahead of the estimate; below 0 if it is behind."""
        return now - read_at - self._offset

    def now(self) -> float:
        """Returns seconds since 1970; a change of this machine's clock has no effect."""
        estimate = time.monotonic() + self._offset
        is_step_back = self._latest - MAX_STEP_BACK <= estimate <= self._latest
        self._latest = self._latest + TICK if is_step_back else estimate
        return self._latest
