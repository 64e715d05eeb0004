"""Leases on shares of a key's budget: no process spends more than its share, so that all together keep to the budget.

Everything is derived from `runs`: what is left of a budget is its limit less the charges of all runs and less the part
of every share that is not charged yet. The share of a dead process therefore needs no clean-up to stay counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, select, update

from rl_conductor.calls.budget import NOTHING, Amount
from rl_conductor_server.store.column_types import PICO
from rl_conductor_server.store.runs.queries import select_charges
from rl_conductor_server.store.statements import Statements
from rl_conductor_server.store.tables import DAY, budget_leases

UNIT = 1 / PICO
LONGEST_PERIOD = 31 * DAY
"""Seconds after its start in which a share of a day's or month's budget may still be in use."""


@dataclass(frozen=True)
class BudgetPeriod:
    """The limits of a key in the period that begins at `start`."""

    key: str
    start: int
    """Seconds since 1970, the beginning of a day in UTC."""
    usd: Decimal | None
    tokens: int | None

    def covers(self, amount: Amount, *, within: Amount) -> bool:
        """Whether `amount` is at most `within`, as far as the budget is limited."""
        return (self.usd is None or amount.usd <= within.usd) and (
            self.tokens is None or amount.tokens <= within.tokens
        )

    def remaining(self, total: Amount) -> Amount:
        """Returns the limits less `total`; 0 where the budget is unlimited."""
        usd = Decimal(0) if self.usd is None else self.usd - total.usd
        return Amount(usd, 0 if self.tokens is None else self.tokens - total.tokens)


@dataclass(frozen=True)
class BudgetState:
    """The spending of all processes in a period."""

    added: Amount
    """The amount that was added to the process's share; zero if the budget has not enough left."""
    charged_here: Amount
    """Charges of this process that are stored."""
    charged_elsewhere: Amount
    """Charges of all other processes, and the rest of the shares of dead ones."""
    leased_elsewhere: Amount
    """The rest of other processes' shares, which they may spend or return."""


@dataclass(frozen=True)
class BudgetLeases:
    """Grants, counts and returns shares on behalf of one process, in transactions of the write queue."""

    statements: Statements
    owner: str
    seconds: float
    """Without a heartbeat for so long, a process counts as dead, and its share as spent."""
    leased_keys: set[str] = field(default_factory=set)
    """The keys of which this process ever had a share."""

    def extend(self, connection: Connection, period: BudgetPeriod, needed: Amount, ahead: Amount) -> BudgetState:
        """Adds `needed` to this process's share if the budget has so much left, and up to `ahead` beyond that.

        At most a quarter of the rest is granted ahead, so that the last money is not out of reach of other processes.
        """
        self.leased_keys.add(period.key)
        charged, leases = self._read(connection, period)
        needed = Amount(Decimal(0) if period.usd is None else needed.usd, 0 if period.tokens is None else needed.tokens)
        committed = sum((_uncharged(row) for row in leases), charged)
        remaining = period.remaining(committed)
        added = NOTHING
        if period.covers(needed, within=remaining):
            rest = remaining - needed
            extra = Amount(max(min(ahead.usd, rest.usd / 4), Decimal(0)), max(min(ahead.tokens, rest.tokens // 4), 0))
            added = round_up(needed) + round_down(extra)
            self._add(connection, period, added)
        return self._state(added, charged, leases)

    def read(self, connection: Connection, period: BudgetPeriod) -> BudgetState:
        """Returns the spending of the other processes."""
        return self._state(NOTHING, *self._read(connection, period))

    def read_charged(self, connection: Connection, keys: Collection[str], start: float) -> dict[str, Amount]:
        """Returns the charges to the budgets of keys in a period, with the rest of the shares of dead processes."""
        charged = dict.fromkeys(keys, NOTHING)
        for row in connection.execute(select_charges(keys, since=start)):
            charged[row.key] += Amount(row.charged_usd, int(row.charged_tokens))
        for row in self._read_shares(connection, keys, start):
            if row.is_dead and row.owner != self.owner:
                charged[row.key] += _uncharged(row)
        return charged

    def give_back(self, connection: Connection, period: BudgetPeriod, unused: Amount) -> None:
        """Takes `unused` from this process's share."""
        c = budget_leases.c
        less = {"granted_usd": c.granted_usd - unused.usd, "granted_tokens": c.granted_tokens - unused.tokens}
        connection.execute(update(budget_leases).where(self._is_own_share(period)).values(less))

    def close(self, connection: Connection) -> None:
        """Removes the shares of this process that are fully charged; the rest of the others stays counted as spent."""
        c = budget_leases.c
        is_charged = and_(c.granted_usd <= c.charged_usd, c.granted_tokens <= c.charged_tokens)
        connection.execute(delete(budget_leases).where(c.owner == self.owner, is_charged))

    def charge(self, connection: Connection, owner: str, charges: Iterable[tuple[str, float, Amount]]) -> None:
        """Counts charges that `owner` adds to runs: their key, the time of creation, and the amount."""
        sums: dict[tuple[str, int], Amount] = defaultdict(Amount)
        for key, created, amount in charges:
            sums[key, int(created // DAY) * DAY] += amount
        rows = [
            {"of_key": key, "of_day": day, "by_owner": owner, "usd": amount.usd, "tokens": amount.tokens}
            for (key, day), amount in sums.items()
            if amount.usd or amount.tokens
        ]
        if rows:
            connection.execute(self.statements.charge_share, rows)

    def renew(self, connection: Connection) -> None:
        """Renews all shares of this process."""
        connection.execute(self.statements.renew_shares, {"by_owner": self.owner})

    @staticmethod
    def delete_old(connection: Connection, *, before: float) -> None:
        """Deletes the shares of periods that ended before a time."""
        is_old = and_(budget_leases.c.start > 0, budget_leases.c.start < before - LONGEST_PERIOD)
        connection.execute(delete(budget_leases).where(is_old))

    def _read(self, connection: Connection, period: BudgetPeriod) -> tuple[Amount, list[Row[Any]]]:
        """Reads the charges of all runs in the period, and all shares."""
        sums = connection.execute(select_charges([period.key], since=period.start)).all()
        charged = sum((Amount(row.charged_usd, int(row.charged_tokens)) for row in sums), NOTHING)
        return charged, self._read_shares(connection, [period.key], period.start)

    def _read_shares(self, connection: Connection, keys: Collection[str], start: float) -> list[Row[Any]]:
        is_in_period = and_(budget_leases.c.key.in_(keys), budget_leases.c.start == start)
        is_dead = (budget_leases.c.heartbeat < self.statements.now - self.seconds).label("is_dead")
        return list(connection.execute(select(budget_leases, is_dead).where(is_in_period)).all())

    def _state(self, added: Amount, charged: Amount, leases: list[Row[Any]]) -> BudgetState:
        here = sum((Amount(row.charged_usd, row.charged_tokens) for row in leases if row.owner == self.owner), NOTHING)
        others = [row for row in leases if row.owner != self.owner]
        lost = sum((_uncharged(row) for row in others if row.is_dead), NOTHING)
        leased = sum((_uncharged(row) for row in others if not row.is_dead), NOTHING)
        return BudgetState(added, here, charged + lost - here, leased)

    def _add(self, connection: Connection, period: BudgetPeriod, amount: Amount) -> None:
        values = {"key": period.key, "start": period.start, "owner": self.owner}
        values |= {"granted_usd": amount.usd, "granted_tokens": amount.tokens, "charged_usd": 0, "charged_tokens": 0}
        connection.execute(self.statements.add_to_share, values)

    def _is_own_share(self, period: BudgetPeriod) -> ColumnElement[bool]:
        c = budget_leases.c
        return and_(c.key == period.key, c.start == period.start, c.owner == self.owner)


def round_up(amount: Amount) -> Amount:
    """Rounds dollars to the unit in which they are stored, so that a share is the same here and in the database."""
    return Amount(amount.usd.quantize(UNIT, ROUND_CEILING), amount.tokens)


def round_down(amount: Amount) -> Amount:
    """Rounds dollars like `round_up`, but down."""
    return Amount(amount.usd.quantize(UNIT, ROUND_FLOOR), amount.tokens)


def _uncharged(row: Row[Any]) -> Amount:
    """The part of a share that is not charged yet."""
    return Amount(max(row.granted_usd - row.charged_usd, Decimal(0)), max(row.granted_tokens - row.charged_tokens, 0))
