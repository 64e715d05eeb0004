"""Deletes old rows, some in each transaction, and keeps the usage of runs per day, which budgets go on counting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, and_, delete, or_, select, tuple_

from rl_conductor_server.store.statements import Statements
from rl_conductor_server.store.tables import (
    CHARGE_COLUMNS,
    DAY,
    USAGE_COLUMNS,
    feedback,
    runs,
    steps,
    users,
    worker_usage,
)
from rl_conductor_server.store.usage.daily_usage import reopen_days

SUMMED_COLUMNS = USAGE_COLUMNS + CHARGE_COLUMNS
DELETE_BATCH_SIZE = 500
"""Maximum number of rows deleted in one transaction, during which no other process can write."""


def delete_some(connection: Connection, table: Table, condition: ColumnElement[bool]) -> int:
    """Deletes up to `DELETE_BATCH_SIZE` rows that meet a condition, and returns their number; 0 if none are left."""
    columns = list(table.primary_key)
    rows = connection.execute(select(*columns).where(condition).limit(DELETE_BATCH_SIZE)).all()
    if rows:
        connection.execute(delete(table).where(tuple_(*columns).in_([tuple(row) for row in rows])))
    return len(rows)


def delete_old_runs(connection: Connection, statements: Statements, *, before: float) -> int:
    """Deletes up to `DELETE_BATCH_SIZE` runs that began before a time and have ended or lost their server.

    Returns:
        The number of deleted runs; 0 if none are left.
    """
    is_old = and_(runs.c.created < before, or_(runs.c.status != "running", runs.c.heartbeat < before))
    run_ids = connection.execute(select(runs.c.id).where(is_old).limit(DELETE_BATCH_SIZE)).scalars().all()
    for table in (steps, worker_usage, users, feedback):
        connection.execute(delete(table).where(table.c.run.in_(run_ids)))
    columns = [runs.c[name] for name in ("key", "owner", "created", *SUMMED_COLUMNS)]
    deleted = connection.execute(delete(runs).where(runs.c.id.in_(run_ids)).returning(*columns)).all()
    if deleted:
        connection.execute(statements.add_deleted_usage, _sum_by_day(deleted))
        reopen_days(connection, (row.created for row in deleted))
    return len(deleted)


def _sum_by_day(deleted: Sequence[Row[Any]]) -> list[dict[str, Any]]:
    """Aggregates deleted runs into rows of `deleted_usage`."""
    days: dict[tuple[str, str, int], list[Row[Any]]] = defaultdict(list)
    for row in deleted:
        days[row.key, row.owner, int(row.created // DAY)].append(row)
    return [
        {"key": key, "owner": owner, "day": day}
        | {name: sum(getattr(row, name) for row in rows) for name in SUMMED_COLUMNS}
        for (key, owner, day), rows in days.items()
    ]
