"""The budgets around a run, from the inside out: its own, that of all choices together, and its API key's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from rl_conductor.calls.budget import NOTHING, UNKNOWN_PRICE, Amount, Budget, Reservation
from rl_conductor.errors import LimitError, RunError
from rl_conductor.workflow.limits import Limits
from rl_conductor_server.auth.leased_budget import STORE, LeasedBudget
from rl_conductor_server.errors import ApiError
from rl_conductor_server.store import StoreUnavailableError


class RunBudget(Budget):
    """A budget without limits of its own, which counts the spending of one run and knows the refusals around it."""

    def __init__(
        self, parent: Budget | None = None, *, on_reserved: Callable[[Amount, Amount], None] | None = None
    ) -> None:
        """Creates a budget with nothing spent.

        Args:
            parent: the budget of all choices together, or else that of the API key.
            on_reserved: gets what is spent and what is reserved, in the event loop of the server, before each call is
                sent.
        """
        super().__init__(Limits(), parent=parent, surrounds_runs=True)
        self.on_reserved = on_reserved
        self._loop = asyncio.get_running_loop()
        self._refusal: LimitError | None = None
        """The last one of a budget around this one."""

    async def acquire(self, reservation: Reservation) -> None:
        try:
            await super().acquire(reservation)
        except LimitError as error:
            self._refusal = error
            raise
        if self.on_reserved is None:
            return
        if asyncio.get_running_loop() is self._loop:
            self.on_reserved(self.spent, self.reserved)
        else:  # a worker that is not async runs a conductor in a thread
            self._loop.call_soon_threadsafe(self.on_reserved, self.spent, self.reserved)

    def check_key_budget(self, error: RunError) -> None:
        """Raises `ApiError` if the run failed after the key's budget refused a call, or could not record it."""
        refusal = self._refusal
        if refusal is None or refusal.owner != LeasedBudget.owner:
            return
        if refusal.limit == STORE:
            raise StoreUnavailableError(str(refusal)) from error
        if refusal.needed == UNKNOWN_PRICE:  # a larger budget would not help
            raise ApiError(str(refusal), status=400, code="price_unknown") from error
        raise ApiError(str(refusal), status=429, code="insufficient_quota") from error


class SharedLimits:
    """The limits of a request for several answers, which apply to all of its runs together."""

    def __init__(self, limits: Limits, choices: int) -> None:
        self._limits = limits
        self._choices = choices
        self.spent = NOTHING
        """Spending before the first run, by another process or under the same `Idempotency-Key`."""
        self._budget: Budget | None = None

    def charge(self, amount: Amount) -> None:
        """Adds the spending of earlier attempts at one of the answers."""
        self.spent += amount
        if self._budget is not None:
            self._budget.charge(amount)

    def budget(self, parent: Budget | None = None) -> Budget:
        """Returns the budget of all runs. The first call creates it inside `parent` and starts its clock."""
        if self._budget is None:
            self._budget = Budget(self._limits, parent=parent, surrounds_runs=True)
            self._budget.charge(self.spent)
            if self._limits.seconds is not None:
                self._budget.deadline = time.monotonic() + self._limits.seconds
        return self._budget

    def check(self, error: RunError) -> None:
        """Raises `ApiError` if a run failed because all answers together reached a limit."""
        last = next(reversed(error.trace.calls), None)
        if last is None:
            return
        message = f"the limits apply to all {self._choices} choices together: {last.error}"
        if last.outcome == "refused":
            raise ApiError(message, status=400, code="limit_exceeded") from error
        if last.outcome == "timeout" and not last.retryable:  # the deadline, not the timeout of the model
            raise ApiError(message, status=504, code="deadline_exceeded") from error
