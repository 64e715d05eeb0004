"""Adds up usage by worker, model or key: of runs, and of days that have been added up before.

A day is added up a day after its end, when its runs have ended as well. So spending over months reads the runs of two
days only.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

from sqlalchemy import BigInteger, Row, cast, func, select

from rl_conductor.types import Usage, total
from rl_conductor_server.store.codec import usage_of
from rl_conductor_server.store.keys.budget_leases import BudgetLeases
from rl_conductor_server.store.models import KeySpending, Spending, SpendingGroup
from rl_conductor_server.store.part import StorePart
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.runs.queries import exact_sum, select_usage, split_keys
from rl_conductor_server.store.tables import DAY, USAGE_COLUMNS, runs, summed_days, worker_usage
from rl_conductor_server.store.usage.daily_usage import mark_day, select_days, store_day
from rl_conductor_server.store.write_behind import WriteBehindQueue

CLOSING_SECONDS = DAY
"""Seconds after the end of a day until it is added up."""


class SpendingStore(StorePart):
    """The usage and cost of runs over time, and the spending of API keys."""

    def __init__(self, reader: StoreReader, write_queue: WriteBehindQueue, budgets: BudgetLeases) -> None:
        super().__init__(reader, write_queue)
        self._budgets = budgets

    async def list_usage(
        self, group_by: SpendingGroup, *, since: float, before: float, width: int
    ) -> Sequence[Spending]:
        """Lists the usage per interval of `width` seconds that had a run; by worker, only of runs that have ended."""
        usages: dict[tuple[int, str], list[Usage]] = defaultdict(list)
        summed: set[int] = set()
        if width % DAY == 0:
            for row in await self._reader.execute(select_days(group_by, since=since, before=before)):
                summed.add(row.day)
                if row.name is not None:
                    usages[row.day * DAY // width, row.name].append(usage_of(row))
        for start, end in _gaps(since, before, summed):
            for row in await self._read_usage(group_by, since=start, before=end, width=width):
                usages[row.bucket, row.name].append(usage_of(row))
        return [
            Spending(name=name, start=bucket * width, usage=total(parts))
            for (bucket, name), parts in sorted(usages.items())
        ]

    async def read_keys(self, keys: Iterable[str], *, start: float) -> dict[str, KeySpending]:
        """Returns the spending of API keys in the period that begins at `start`, by key.

        Deleted runs count if the whole day on which they began is in the period.
        """
        await self._write_queue.flush()
        spending: dict[str, KeySpending] = {}
        for part in split_keys(keys):
            spending |= await self._read_part(part, start)
        return spending

    async def _read_part(self, keys: Sequence[str], start: float) -> dict[str, KeySpending]:
        usages: dict[str, list[Usage]] = {key: [] for key in keys}
        for row in await self._reader.execute(select_usage(keys, since=start)):
            usages[row.key].append(usage_of(row))
        charged = await self._reader.run(lambda c: c.run_sync(self._budgets.read_charged, keys, start))
        return {key: KeySpending(total(usages[key]), charged[key]) for key in keys}

    async def sum_days(self, *, now: float) -> int:
        """Adds up all days that ended a day ago or earlier and are not added up yet, and returns their number."""
        oldest = (await self._reader.execute(select(func.min(runs.c.created)))).scalar_one()
        if oldest is None:
            return 0
        query = select(summed_days.c.day).where(summed_days.c.mark.is_(None))
        summed = (await self._reader.execute(query)).scalars().all()
        missing = sorted(set(range(int(oldest // DAY), int((now - CLOSING_SECONDS) // DAY))) - set(summed))
        for day in missing:
            await self._sum_day(day)
        return len(missing)

    async def _sum_day(self, day: int) -> None:
        """Adds up a day. Its runs are read between two transactions, because other writes wait for each of these."""
        mark = secrets.token_hex(16)
        await self._write_queue.execute(lambda connection: mark_day(connection, day, mark))
        sums = [
            {"day": day, "group_by": group_by, "name": row.name} | {name: getattr(row, name) for name in USAGE_COLUMNS}
            for group_by in get_args(SpendingGroup)
            for row in await self._read_usage(group_by, since=day * DAY, before=(day + 1) * DAY, width=DAY)
        ]
        await self._write_queue.execute(lambda connection: store_day(connection, day, mark, sums))

    async def _read_usage(
        self, group_by: SpendingGroup, *, since: float, before: float, width: int
    ) -> Sequence[Row[Any]]:
        """Reads the usage of runs; buckets of `width` seconds are numbered from 1970."""
        source = worker_usage if group_by == "worker" else runs
        created = source.c.created if self._reader.dialect == "sqlite" else func.floor(source.c.created)
        name = source.c[group_by].label("name")
        bucket = (cast(created, BigInteger) // width).label("bucket")  # Postgres would round, SQLite truncates
        sums = [exact_sum(source.c[column]).label(column) for column in USAGE_COLUMNS]
        query = select(name, bucket, *sums).where(source.c.created >= since, source.c.created < before)
        return (await self._reader.execute(query.group_by(name, bucket))).all()


def _gaps(since: float, before: float, summed: Iterable[int]) -> Iterator[tuple[float, float]]:
    """Yields the intervals from `since` to `before` without the summed days."""
    for day in sorted(summed):
        if since < day * DAY:
            yield since, day * DAY
        since = (day + 1) * DAY
    if since < before:
        yield since, before
