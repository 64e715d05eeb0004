"""`RunBudget`: the spending of one run, with its calls in flight on record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rl_conductor.calls.budget import Amount, Budget, Reservation
from rl_conductor.workflow.limits import Limits
from rl_conductor_server.auth.leased_budget import ANY_DEPTH


class RunBudget(Budget):
    """A budget without limits of its own, which reports each reservation before its call is sent."""

    def __init__(self, parent: Budget | None, *, on_reserved: Callable[[Amount, Amount], None]) -> None:
        """`on_reserved` gets what is spent and what is reserved, in the event loop of the server."""
        super().__init__(Limits(depth=ANY_DEPTH), parent=parent)
        self._on_reserved = on_reserved
        self._loop = asyncio.get_running_loop()

    async def acquire(self, reservation: Reservation) -> None:
        await super().acquire(reservation)
        if asyncio.get_running_loop() is self._loop:
            self._on_reserved(self.spent, self.reserved)
        else:  # a worker that is not async runs a conductor in a thread
            self._loop.call_soon_threadsafe(self._on_reserved, self.spent, self.reserved)
