"""On whose account a run is, and what that may still spend: budgets that hold for each single call."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from rl_conductor.calls.budget import Amount, Budget
from rl_conductor.types import Usage
from rl_conductor.workflow.limits import Limits
from rl_conductor_server.errors import ApiError
from rl_conductor_server.settings import BudgetEntry
from rl_conductor_server.store import Store

ANY_DEPTH = 1_000
"""A budget stands around a run, but is no conductor that calls another."""


class Purse:
    """A budget, and what was spent of it by all processes."""

    def __init__(self, name: str, entry: BudgetEntry | None, store: Store) -> None:
        """Without an `entry`, anything may be spent."""
        self.name = name
        self._allowed = entry or BudgetEntry()
        self._store = store
        self._since: float | None = None
        self._elsewhere = Amount()
        self._budget: Budget | None = None
        self._counting = asyncio.Lock()

    async def budget(self) -> Budget | None:
        """What may still be spent in the period at hand; `None` when anything may be.

        Raises:
            ApiError: nothing is left.
        """
        allowed = self._allowed
        if allowed.usd is None and allowed.tokens is None:
            return None
        since = period_start(allowed.per)
        async with self._counting:  # who comes meanwhile must see what was spent before, too
            if self._budget is None or since != self._since:
                elsewhere = await self._store.charged_elsewhere(self.name, since=since)
                self._budget = Budget(Limits(usd=allowed.usd, tokens=allowed.tokens, depth=ANY_DEPTH))
                self._budget.charge(elsewhere)
                self._since, self._elsewhere = since, elsewhere
        self._check(self._budget.spent)
        return self._budget

    def _check(self, spent: Amount) -> None:
        allowed, used_up = self._allowed, ""
        if allowed.usd is not None and spent.usd >= allowed.usd:
            used_up = f"${allowed.usd:f}"
        elif allowed.tokens is not None and spent.tokens >= allowed.tokens:
            used_up = f"{allowed.tokens:,} tokens"
        if used_up:
            message = f"this key's budget of {used_up} ({allowed.per}) is used up"
            raise ApiError(message, status=429, code="insufficient_quota")

    async def refresh(self) -> None:
        """Count what other processes have spent meanwhile."""
        async with self._counting:
            if self._budget is None or self._since is None:
                return
            elsewhere = await self._store.charged_elsewhere(self.name, since=self._since)
            self._budget.charge(elsewhere - self._elsewhere)
            self._elsewhere = elsewhere

    async def spent(self) -> Usage:
        """What was used in the period at hand, by all processes."""
        return await self._store.spent(self.name, since=period_start(self._allowed.per))


def period_start(per: str) -> float:
    """When the period at hand began, in seconds since 1970."""
    now = datetime.now(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return {"day": today.timestamp(), "month": today.replace(day=1).timestamp(), "ever": 0.0}[per]
