"""Counts the bytes of traces and responses that each API key stores, so that a limit is checked without adding them up.

The counts are per day on which a run began, and are deleted with the runs of that day.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection, Executable, delete, func, select

from rl_conductor_server.store.dialects import insert_into
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.tables import DAY, stored_sizes


class Growth(NamedTuple):
    """Bytes that were stored, or deleted if negative, for a run of an API key that began at a time."""

    key: str
    created: float
    bytes: int

    def __neg__(self) -> Growth:
        return self._replace(bytes=-self.bytes)


class StoredSizes:
    """The bytes that each API key stores."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader

    async def totals(self) -> dict[str, int]:
        """Returns the bytes that each API key stores, as far as they are committed."""
        query = select(stored_sizes.c.key, func.sum(stored_sizes.c.bytes).label("bytes")).group_by(stored_sizes.c.key)
        return {row.key: int(row.bytes) for row in await self._reader.execute(query)}

    @staticmethod
    def delete_old(connection: Connection, *, before: float) -> None:
        connection.execute(delete(stored_sizes).where(stored_sizes.c.day + 1 <= before / DAY))


def add_sizes(connection: Connection, growths: Iterable[Growth]) -> None:
    """Adds the sizes that a transaction of the write queue stored or deleted."""
    sums: dict[tuple[str, int], int] = defaultdict(int)
    for growth in growths:
        sums[growth.key, int(growth.created // DAY)] += growth.bytes
    if rows := [{"key": key, "day": day, "bytes": size} for (key, day), size in sums.items() if size]:
        connection.execute(_UPSERTS[connection.dialect.name], rows)


def size_of(text: str | None) -> int:
    """Returns the bytes that a text takes in UTF-8."""
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _add_to_count(dialect: str) -> Executable:
    statement = insert_into(stored_sizes, dialect)
    return statement.on_conflict_do_update(
        index_elements=list(stored_sizes.primary_key),
        set_={"bytes": stored_sizes.c.bytes + statement.excluded.bytes},
    )


_UPSERTS = {dialect: _add_to_count(dialect) for dialect in ("sqlite", "postgresql")}
