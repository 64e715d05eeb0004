"""Per-key budgets of a day or month, shared by all processes and enforced on every model call."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime

from rl_conductor.calls.budget import NOTHING, Amount, Budget
from rl_conductor_server.auth.leased_budget import LeasedBudget
from rl_conductor_server.errors import ApiError, storage_limit_exceeded
from rl_conductor_server.settings import BudgetEntry, Period
from rl_conductor_server.store import BudgetPeriod, KeySpending, Store

log = logging.getLogger("rl_conductor_server")

STORAGE_WARNING = 0.8
"""The used part of the storage limit of a key from which the log has a warning."""


class KeyBudget:
    """The budget of a key, and the spending of all processes against it."""

    def __init__(self, name: str, entry: BudgetEntry | None, store: Store) -> None:
        """Without an `entry`, spending is unlimited."""
        self.name = name
        self._limits = entry or BudgetEntry()
        self._store = store
        self._budgets: dict[int, LeasedBudget] = {}
        """The budgets of the current period, and of past ones with calls in flight, by the start of the period."""
        self._outdated: set[int] = set()
        """The periods of which the next run has to read the spending of other processes."""
        self._lock = asyncio.Lock()
        self.storage_limit: int | None = None
        """Maximum bytes of traces and responses of the key; `None` means no limit."""
        self.stored_bytes = 0
        """Bytes that all processes stored for the key, as of a few seconds ago."""

    def update_storage(self, stored: int, *, limit: int) -> None:
        """Sets the number of bytes stored for the key, and warns when most of the limit is used up."""
        if stored >= STORAGE_WARNING * limit > self.stored_bytes:
            log.warning("the key %r stores %d bytes of at most %d", self.name, stored, limit)
        self.stored_bytes, self.storage_limit = stored, limit

    def check_storage(self) -> None:
        """Raises `ApiError` if the key may store no more runs."""
        if self.storage_limit is not None and self.stored_bytes >= self.storage_limit:
            raise storage_limit_exceeded(
                f"the stored runs and responses of this key may have {self.storage_limit:,} bytes in total; delete "
                "responses, wait until old runs are deleted, or send requests with store: false"
            )

    async def current(self, began: float) -> Budget | None:
        """Returns the budget of the period in which a run began or was resumed; `None` if spending is unlimited.

        Raises:
            ApiError: the budget is used up.
        """
        limits = self._limits
        if limits.usd is None and limits.tokens is None:
            return None
        start = period_start(limits.per, began)
        async with self._lock:  # concurrent requests must not create two budgets of the same period
            budget = self._budgets.get(start)
            if budget is None:
                period = BudgetPeriod(self.name, start, limits.usd, limits.tokens)
                budget = LeasedBudget(period, self._store, await self._store.read_budget(period))
                self._budgets[start] = budget
            elif start in self._outdated:
                await budget.refresh()
            self._outdated.discard(start)
        self._check_remaining(budget.spent_in_total)
        return budget

    def _check_remaining(self, total: Amount) -> None:
        limits, limit = self._limits, ""
        if limits.usd is not None and total.usd >= limits.usd:
            limit = f"${limits.usd:f}"
        elif limits.tokens is not None and total.tokens >= limits.tokens:
            limit = f"{limits.tokens:,} tokens"
        if limit:
            message = f"this key's budget of {limit} ({limits.per}) is used up"
            raise ApiError(message, status=429, code="insufficient_quota")

    def return_unused(self) -> None:
        """Returns unused shares of the budget to the store, and drops the budgets of past periods without calls.

        A run of a past period that goes on afterwards still has its budget, and no other run needs the rest of that.

        The next run reads the spending of other processes. To read it here would take most of the processor time of a
        server with a thousand keys, few of which have runs at a time.
        """
        for budget in self._budgets.values():
            budget.return_unused()
        if len(self._budgets) > 1:
            current = self.current_start()
            self._budgets = {
                start: budget
                for start, budget in self._budgets.items()
                if start >= current or budget.reserved != NOTHING
            }
        self._outdated = set(self._budgets)

    def close(self) -> None:
        """Returns everything that is not spent to the store, after all runs have ended."""
        for budget in self._budgets.values():
            budget.return_unused(is_closing=True)

    def current_start(self) -> int:
        """Returns the start of the current period, in seconds since 1970."""
        return period_start(self._limits.per, self._store.now())


async def read_spending(budgets: Iterable[KeyBudget], store: Store) -> dict[str, KeySpending]:
    """Returns the spending of keys in their current periods, by key; all keys with periods of one length at once."""
    names: dict[int, list[str]] = defaultdict(list)
    for budget in budgets:
        names[budget.current_start()].append(budget.name)
    spending: dict[str, KeySpending] = {}
    for start, keys in names.items():
        spending |= await store.spending.read_keys(keys, start=start)
    return spending


def period_start(per: Period, now: float) -> int:
    """Returns the start of the period around a time, in seconds since 1970."""
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return {"day": int(today.timestamp()), "month": int(today.replace(day=1).timestamp()), "ever": 0}[per]
