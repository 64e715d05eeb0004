"""The audit record in the database: one chain over all processes that share it, which nothing here ever shortens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Protocol

from sqlalchemy import Connection, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rl_conductor.trace.audit import BEGINNING, Chain, Record, digest_of
from rl_conductor_server.store.tables import records


class MakeRecord(Protocol):
    """Makes a record for a place in the chain."""

    def __call__(self, *, sequence: int, previous: str) -> Record:
        """The record."""


def append(connection: Connection, making: Iterable[MakeRecord]) -> None:
    """Add records to the chain, in a transaction of the writer: of all processes only one has such a one at a time."""
    newest = select(records.c.sequence, records.c.hash).order_by(records.c.sequence.desc()).limit(1)
    last = connection.execute(newest).first()
    sequence, previous = (0, BEGINNING) if last is None else (last.sequence, last.hash)
    rows = []
    for make in making:
        sequence += 1
        record = make(sequence=sequence, previous=previous)
        line = record.line
        previous = digest_of(line)
        rows.append({"sequence": sequence, "run": record.run, "hash": previous, "body": line})
    if rows:
        connection.execute(insert(records), rows)


async def read(connection: AsyncConnection, chain: Chain) -> AsyncGenerator[str, None]:
    """Every line, from the first, each once `chain` has read it."""
    whole = select(records.c.hash, records.c.body).order_by(records.c.sequence)
    async with connection.stream(whole) as rows:
        async for row in rows:
            chain.read(row.body)
            if chain.broken is None and row.hash != chain.head:
                chain.broken = f"record {chain.records} was changed"
            yield row.body
