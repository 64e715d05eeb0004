"""The elapsed time, deadline and budget of one run, shared by all of its model calls."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rl_conductor.calls.budget import Budget


@dataclass
class RunClock:
    """Measures one run against `limits.seconds`; times are in seconds since the run began."""

    budget: Budget
    began: float = field(default_factory=time.monotonic, kw_only=True)
    """On the clock of `time.monotonic`."""

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    def remaining(self, call_deadline: float | None = None) -> float | None:
        """Seconds until the run's deadline or `call_deadline` (since the run began); `None` without either."""
        deadline = self.deadline()
        run = None if deadline is None else deadline[0] - time.monotonic()
        if call_deadline is None:
            return run
        call = call_deadline - self.elapsed()
        return call if run is None else min(call, run)

    def deadline(self) -> tuple[float, float] | None:
        """The earlier of the run's own and the shared deadline, on `time.monotonic`, and its `limits.seconds`."""
        seconds, shared = self.budget.limits.seconds, self.budget.shared_deadline()
        if seconds is None:
            return shared
        own = (self.began + seconds, seconds)
        return own if shared is None else min(own, shared)

    def deadline_after(self, share: float) -> float | None:
        """The time at which `share` of the remaining time is over; `None` without a limit."""
        remaining = self.remaining()
        return None if remaining is None else self.elapsed() + share * max(remaining, 0.0)
