"""The stored usage of whole days by worker, model or key, and the transactions that keep it equal to that of the runs.

A write that changes the usage of a run, or deletes the run, deletes the sums of its day in the same transaction. All
processes write one after the other, so a sum is either of the runs as they are, or is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, delete, insert, select, update

from rl_conductor_server.store.models import SpendingGroup
from rl_conductor_server.store.tables import DAY, USAGE_COLUMNS, daily_usage, summed_days

_REOPEN = delete(summed_days).where(summed_days.c.day.in_(bindparam("days", expanding=True)))


def reopen_days(connection: Connection, created: Iterable[float]) -> None:
    """Deletes the sums of the days on which these runs began, because their usage changes."""
    connection.execute(_REOPEN, {"days": sorted({int(time // DAY) for time in created})})


def delete_days(connection: Connection, *, until: float) -> None:
    """Deletes the sums of all days up to that of a time."""
    for table in (summed_days, daily_usage):
        connection.execute(delete(table).where(table.c.day <= int(until // DAY)))


def mark_day(connection: Connection, day: int, mark: str) -> None:
    """Marks a day that is being added up; a change of its runs removes the mark."""
    reopen_days(connection, [day * DAY])
    connection.execute(insert(summed_days).values(day=day, mark=mark))


def store_day(connection: Connection, day: int, mark: str, sums: Sequence[dict[str, Any]]) -> None:
    """Stores the sums of a day, unless its mark was removed or replaced while they were read."""
    is_marked = and_(summed_days.c.day == day, summed_days.c.mark == mark)
    if connection.execute(update(summed_days).where(is_marked).values(mark=None)).rowcount:
        connection.execute(delete(daily_usage).where(daily_usage.c.day == day))
        if sums:
            connection.execute(insert(daily_usage), sums)


def select_days(group_by: SpendingGroup, *, since: float, before: float) -> Select[Any]:
    """Selects the sums of whole days; a day without a run has one row, without a name."""
    day = summed_days.c.day
    of_group = and_(daily_usage.c.day == day, daily_usage.c.group_by == group_by)
    return (
        select(day, *(daily_usage.c[name] for name in ("name", *USAGE_COLUMNS)))
        .select_from(summed_days.outerjoin(daily_usage, of_group))
        .where(summed_days.c.mark.is_(None), day >= since / DAY, day + 1 <= before / DAY)
    )
