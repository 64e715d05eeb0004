"""Forgets old runs, but not what they used: budgets go on counting that, by the day on which each run began."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, or_, select

from rl_conductor_server.store.prepared import Statements
from rl_conductor_server.store.queries import AMOUNTS, CHARGES, DAY
from rl_conductor_server.store.tables import runs, shares, steps

SUMMED = AMOUNTS + CHARGES
AT_ONCE = 500
"""Most runs that are deleted in one transaction: others wait for it."""


def forget(connection: Connection, statements: Statements, *, before: float) -> int:
    """Delete some of the runs that began before a time and are over or left behind; how many."""
    old = and_(runs.c.created < before, or_(runs.c.status != "running", runs.c.heartbeat < before))
    names = connection.execute(select(runs.c.id).where(old).limit(AT_ONCE)).scalars().all()
    for table in (steps, shares):
        connection.execute(delete(table).where(table.c.run.in_(names)))
    counted = [runs.c[name] for name in ("key", "owner", "created", *SUMMED)]
    gone = connection.execute(delete(runs).where(runs.c.id.in_(names)).returning(*counted)).all()
    if gone:
        connection.execute(statements.remember, _by_day(gone))
    return len(gone)


def _by_day(gone: Sequence[Row[Any]]) -> list[dict[str, Any]]:
    """Rows of `forgotten`."""
    days: dict[tuple[str, str, int], list[Row[Any]]] = defaultdict(list)
    for row in gone:
        days[row.key, row.owner, int(row.created // DAY)].append(row)
    return [
        {"key": key, "owner": owner, "day": day} | {name: sum(getattr(row, name) for row in rows) for name in SUMMED}
        for (key, owner, day), rows in days.items()
    ]
