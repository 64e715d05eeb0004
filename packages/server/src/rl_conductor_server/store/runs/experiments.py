"""Stores the compared answers of experiments and the state of their canaries, shared by all processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, Table, and_, select, update

from rl_conductor.types import Usage
from rl_conductor_server.store.dialects import database_now
from rl_conductor_server.store.models import COMPARISON_APIS, INTERNAL_APIS, AnswerOutcome, Canary, Pair
from rl_conductor_server.store.part import StorePart
from rl_conductor_server.store.runs.queries import exact_sum, is_release_of
from rl_conductor_server.store.tables import USAGE_COLUMNS, canaries, pairs, runs


class ExperimentStore(StorePart):
    """Pairs of answers, and canaries. Their column `experiment` has the pinned name."""

    # -------------------------------------------------------------------------------------------- pairs

    def add_pair(self, pair: Pair) -> None:
        insert = self._insert(pairs).values(pair.model_dump()).on_conflict_do_nothing(index_elements=["run"])
        self._write_queue.add(lambda connection: connection.execute(insert))

    async def list_pairs(
        self, name: str | None = None, *, since: float = 0.0, limit: int | None = None
    ) -> Sequence[Pair]:
        """Lists the newest pairs of an experiment, by its name or pinned name, or of all."""
        query = (
            select(pairs)
            .where(pairs.c.created >= since, *_of_experiment(pairs, name))
            .order_by(pairs.c.created.desc(), pairs.c.run)
            .limit(limit)
        )
        return [Pair.model_validate(row) for row in await self._fetch(query)]

    async def comparison_usage(self, pinned: str) -> Usage:
        """Returns the usage of an experiment's shadow runs and judges, by its pinned name."""
        sums = [exact_sum(runs.c[name]).label(name) for name in USAGE_COLUMNS]
        (row,) = await self._fetch(select(*sums).where(runs.c.model == pinned, runs.c.api.in_(COMPARISON_APIS)))
        return Usage(**row)

    # ----------------------------------------------------------------------------------------- canaries

    async def list_canaries(self, name: str | None = None) -> Sequence[Canary]:
        """Lists the canary of each release of an experiment, by its name or pinned name, or of all."""
        query = select(canaries).where(*_of_experiment(canaries, name)).order_by(canaries.c.experiment)
        return [
            Canary.model_validate({field: row[field] for field in Canary.model_fields})
            for row in await self._fetch(query)
        ]

    async def list_canary_answers(self, canary: Canary, *, limit: int) -> Sequence[AnswerOutcome]:
        """Lists the newest answers that the conductor gave to users since the canary was last changed."""
        is_user_answer = and_(runs.c.status.in_(("done", "failed")), runs.c.api.not_in(INTERNAL_APIS))
        is_of_canary = and_(
            runs.c.model == canary.experiment, runs.c.arm == "conductor", runs.c.created >= canary.since
        )
        query = (
            select(runs.c.status, runs.c.seconds, runs.c.cost, runs.c.unpriced_calls)
            .where(is_user_answer, is_of_canary)
            .order_by(runs.c.created.desc())
            .limit(limit)
        )
        return [
            AnswerOutcome(
                failed=row["status"] == "failed",
                seconds=row["seconds"],
                cost=None if row["unpriced_calls"] else row["cost"],
            )
            for row in await self._fetch(query)
        ]

    async def configure_canary(self, pinned: str, percent: float) -> None:
        """Applies the percentage of the settings, unless it is the one that was applied last.

        So a restart keeps a percentage that was changed, or rolled back, after the settings were read.
        """
        values = {
            "configured": percent,
            "percent": percent,
            "since": self._now,
            "reason": "set by the settings file",
        }
        insert = (
            self._insert(canaries)
            .values(experiment=pinned, **values)
            .on_conflict_do_nothing(index_elements=["experiment"])
        )
        change = (
            update(canaries).where(canaries.c.experiment == pinned, canaries.c.configured != percent).values(values)
        )

        def write(connection: Connection) -> None:
            connection.execute(insert)
            connection.execute(change)

        await self._write_queue.execute(write)

    async def set_canary(self, pinned: str, percent: float, reason: str) -> Canary | None:
        """Changes the percentage; returns `None` if there is no such experiment."""
        is_canary = canaries.c.experiment == pinned
        return await self._write_queue.execute(
            lambda connection: _update_canary(connection, is_canary, percent, reason)
        )

    async def roll_back_canary(self, canary: Canary, reason: str) -> Canary | None:
        """Sets the percentage to 0; returns `None` if the canary was changed since it was read."""
        is_unchanged = and_(canaries.c.experiment == canary.experiment, canaries.c.since == canary.since)
        return await self._write_queue.execute(lambda connection: _update_canary(connection, is_unchanged, 0.0, reason))

    async def _fetch(self, query: Select[Any]) -> Sequence[RowMapping]:
        return (await self._read(query)).mappings().all()


def _update_canary(
    connection: Connection, condition: ColumnElement[bool], percent: float, reason: str
) -> Canary | None:
    values = {"percent": percent, "since": database_now(connection.dialect.name), "reason": reason}
    columns = [canaries.c[name] for name in Canary.model_fields]
    row = connection.execute(update(canaries).where(condition).values(values).returning(*columns)).mappings().first()
    return None if row is None else Canary.model_validate(dict(row))


def _of_experiment(table: Table, name: str | None) -> Sequence[ColumnElement[bool]]:
    return () if name is None else (is_release_of(table.c.experiment, name),)
