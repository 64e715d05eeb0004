"""What a route's trial of the conductor has shown so far, and how far its canary is, for all processes alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from rl_conductor.types import Usage
from rl_conductor_server.store.models import BESIDE, Answered, Canary, Pair
from rl_conductor_server.store.queries import AMOUNTS, exact_sum
from rl_conductor_server.store.tables import canaries, pairs, runs
from rl_conductor_server.store.write_behind import Journal


class Trials:
    """Pairs, canaries, and the answers that their guards watch; a part of the `Store`."""

    def __init__(self, engine: AsyncEngine, journal: Journal) -> None:
        self._engine = engine
        self._journal = journal
        self._insert = (sqlite if engine.dialect.name == "sqlite" else postgresql).insert

    def add(self, pair: Pair) -> None:
        """Keep a pair."""
        once = self._insert(pairs).values(pair.model_dump()).on_conflict_do_nothing(index_elements=["run"])
        self._journal.add(lambda connection: connection.execute(once))

    async def pairs(self, route: str | None = None, *, since: float = 0.0, most: int | None = None) -> Sequence[Pair]:
        """The newest pairs of a route, by its name, pinned or not, or of all."""
        newest = select(pairs).order_by(pairs.c.created.desc(), pairs.c.run)
        wanted = newest.where(pairs.c.created >= since, *_of(pairs, route))
        return [Pair.model_validate(row) for row in await self._found(wanted.limit(most))]

    async def answers(self, canary: Canary, *, most: int) -> Sequence[Answered]:
        """The newest answers that the conductor gave to users since the canary was set."""
        ended = and_(runs.c.status.in_(("done", "failed")), runs.c.api.not_in(BESIDE))
        its = and_(runs.c.model == canary.route, runs.c.side == "conductor", runs.c.created >= canary.since)
        columns = (runs.c.status, runs.c.seconds, runs.c.cost, runs.c.unpriced_calls)
        wanted = select(*columns).where(ended, its).order_by(runs.c.created.desc()).limit(most)
        return [
            Answered(
                failed=row["status"] == "failed",
                seconds=row["seconds"],
                cost=None if row["unpriced_calls"] else row["cost"],
            )
            for row in await self._found(wanted)
        ]

    async def spent(self, route: str) -> Usage:
        """What was used beside what users asked of a route, by its pinned name."""
        sums = [exact_sum(runs.c[amount]).label(amount) for amount in AMOUNTS]
        (used,) = await self._found(select(*sums).where(runs.c.model == route, runs.c.api.in_(("shadow", "judge"))))
        return Usage(**used)

    async def canaries(self, route: str | None = None) -> Sequence[Canary]:
        """Those of a route's releases, or all."""
        found = await self._found(select(canaries).where(*_of(canaries, route)).order_by(canaries.c.route))
        return [Canary.model_validate({name: row[name] for name in Canary.model_fields}) for row in found]

    async def configure(self, route: str, percent: float) -> None:
        """Set what the settings say, unless they said so before: then what was made of it since stands."""
        values = {"configured": percent, "percent": percent, "since": time.time(), "reason": "the settings say so"}
        first = self._insert(canaries).values(route=route, **values).on_conflict_do_nothing(index_elements=["route"])
        changed = update(canaries).where(canaries.c.route == route, canaries.c.configured != percent).values(values)

        def write(connection: Connection) -> None:
            connection.execute(first)
            connection.execute(changed)

        await self._journal.run(write)

    async def set(self, route: str, percent: float, reason: str) -> Canary | None:
        """Let the conductor answer this share from now on; `None` when there is no such route."""
        return await self._journal.run(lambda connection: _set(connection, canaries.c.route == route, percent, reason))

    async def roll_back(self, canary: Canary, reason: str) -> Canary | None:
        """Let the conductor answer nothing any more; `None` when another process was first, or it was set anew."""
        unchanged = and_(canaries.c.route == canary.route, canaries.c.since == canary.since)
        return await self._journal.run(lambda connection: _set(connection, unchanged, 0.0, reason))

    async def _found(self, wanted: Select[Any]) -> Sequence[Any]:
        await self._journal.flush()
        async with self._engine.connect() as connection:
            rows: Sequence[Any] = (await connection.execute(wanted)).mappings().all()
            return rows


def _set(connection: Connection, which: Any, percent: float, reason: str) -> Canary | None:
    values = {"percent": percent, "since": time.time(), "reason": reason}
    kept = [canaries.c[name] for name in Canary.model_fields]
    row = connection.execute(update(canaries).where(which).values(values).returning(*kept)).mappings().first()
    return None if row is None else Canary.model_validate(dict(row))


def _of(table: Table, route: str | None) -> Sequence[ColumnElement[bool]]:
    """True of the rows of a route, by its name, pinned or not."""
    if route is None:
        return ()
    return (or_(table.c.route == route, table.c.route.startswith(f"{route}-2", autoescape=True)),)
