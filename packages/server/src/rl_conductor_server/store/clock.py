"""The database's clock, by which all processes agree on leases and periods, however wrong their own clocks are."""

from __future__ import annotations

import time

from sqlalchemy import Float, TextualSelect, text

DATABASE_NOW = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
}
"""SQL expressions for the current time in seconds since 1970; SQLite's is that of the machine."""


def select_now(dialect: str) -> TextualSelect:
    """Build a query for the database's current time."""
    return text(f"SELECT {DATABASE_NOW[dialect]} AS now").columns(now=Float)


class DatabaseClock:
    """Estimates the database's current time between two readings of it."""

    def __init__(self, now: float) -> None:
        self.set(now)

    def set(self, now: float) -> None:
        """Adopt a time that the database returned just now."""
        self._offset = now - time.monotonic()

    def now(self) -> float:
        """Return seconds since 1970; a change of this machine's clock has no effect."""
        return time.monotonic() + self._offset


class Contact:
    """Tracks whether this process was cut off from the database."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._last: float | None = None
        self._began = float("-inf")

    def record(self) -> None:
        """Note that the database answered; a gap of more than a lease counts as an interruption."""
        now = time.monotonic()
        if self._last is not None and now - self._last > self._lease > 0:
            self._began = now
        self._last = now

    @property
    def is_recent(self) -> bool:
        """Whether an interruption ended less than a lease ago."""
        return time.monotonic() - self._began < self._lease
