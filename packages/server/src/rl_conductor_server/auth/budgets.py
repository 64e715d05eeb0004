"""Per-key budgets of a day or month, shared by all processes and enforced on every model call."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal

from rl_conductor.calls.budget import Amount, Budget, Reservation
from rl_conductor.errors import LimitError
from rl_conductor.types import Usage
from rl_conductor.workflow.limits import Limits
from rl_conductor_server.errors import ApiError
from rl_conductor_server.settings import BudgetEntry
from rl_conductor_server.store import Store

ANY_DEPTH = 1_000
"""The `limits.depth` of budgets around a run, so that they don't count as nested conductors."""


class KeyBudget:
    """The budget of a key, and the spending of all processes against it."""

    def __init__(self, name: str, entry: BudgetEntry | None, store: Store) -> None:
        """Without an `entry`, spending is unlimited."""
        self.name = name
        self._limits = entry or BudgetEntry()
        self._store = store
        self._period_start: float | None = None
        self._spent_elsewhere = Amount()
        self._budget: Budget | None = None
        self._lock = asyncio.Lock()

    async def current(self) -> Budget | None:
        """Returns the budget of the current period; `None` if spending is unlimited.

        Raises:
            ApiError: the budget is used up.
        """
        limits = self._limits
        if limits.usd is None and limits.tokens is None:
            return None
        start = period_start(limits.per)
        async with self._lock:  # concurrent requests must not start with a budget that lacks earlier spending
            if self._budget is None or start != self._period_start:
                spent_elsewhere = await self._store.charged_by_others(self.name, since=start)
                self._budget = Budget(Limits(usd=limits.usd, tokens=limits.tokens, depth=ANY_DEPTH))
                self._budget.charge(spent_elsewhere)
                self._period_start, self._spent_elsewhere = start, spent_elsewhere
        self._check_remaining(self._budget.spent)
        return self._budget

    def _check_remaining(self, total: Amount) -> None:
        limits, limit = self._limits, ""
        if limits.usd is not None and total.usd >= limits.usd:
            limit = f"${limits.usd:f}"
        elif limits.tokens is not None and total.tokens >= limits.tokens:
            limit = f"{limits.tokens:,} tokens"
        if limit:
            message = f"this key's budget of {limit} ({limits.per}) is used up"
            raise ApiError(message, status=429, code="insufficient_quota")

    async def refresh(self) -> None:
        """Adds the spending of other processes since the last refresh."""
        async with self._lock:
            if self._budget is None or self._period_start is None:
                return
            spent_elsewhere = await self._store.charged_by_others(self.name, since=self._period_start)
            self._budget.charge(spent_elsewhere - self._spent_elsewhere)
            self._spent_elsewhere = spent_elsewhere

    async def usage(self) -> Usage:
        """Returns the usage of all processes in the current period."""
        return await self._store.get_usage(self.name, since=period_start(self._limits.per))


def period_start(per: str) -> float:
    """Returns the start of the current period, in seconds since 1970."""
    now = datetime.now(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return {"day": today.timestamp(), "month": today.replace(day=1).timestamp(), "ever": 0.0}[per]


class RefusalRecorder(Budget):
    """A budget without limits of its own, which records the calls that the budget around it refuses."""

    def __init__(self, parent: Budget, refusals: dict[str, LimitError]) -> None:
        """Adds each refusal to `refusals`, under its message."""
        super().__init__(Limits(depth=ANY_DEPTH), parent=parent)
        self._refusals = refusals

    async def acquire(self, reservation: Reservation) -> None:
        try:
            await super().acquire(reservation)
        except LimitError as error:
            self._refusals[str(error)] = error
            raise


def format_refusal(error: LimitError) -> str:
    """Formats the refusal of a call by a key's budget, which the caller can't raise."""
    if error.needed == Decimal("Infinity"):
        return f"this key has a budget in US dollars, but {error}"
    remaining = max(error.remaining, 0)
    if error.limit == "usd":
        return f"${remaining:f} is left of this key's budget, but the next call may cost up to ${error.needed:f}"
    return f"{remaining:,} tokens are left of this key's budget, but the next call may use up to {error.needed:,}"
