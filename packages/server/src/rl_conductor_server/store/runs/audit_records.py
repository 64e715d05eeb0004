"""Appends to and reads the audit record: one hash chain for all processes, from which nothing is ever deleted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Protocol

from sqlalchemy import Connection, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rl_conductor.trace.audit import BEGINNING, Chain, FeedbackRecord, Record, digest_of
from rl_conductor_server.store.tables import records


class RecordFactory(Protocol):
    """Builds the record for a given position in the chain."""

    def __call__(self, *, sequence: int, previous: str) -> Record | FeedbackRecord: ...


def append_records(connection: Connection, factories: Iterable[RecordFactory]) -> None:
    """Append one record per factory to the chain.

    Must run in a writer transaction: the write lock ensures that only one process appends at a time.
    """
    newest = select(records.c.sequence, records.c.hash).order_by(records.c.sequence.desc()).limit(1)
    last = connection.execute(newest).first()
    sequence, previous = (0, BEGINNING) if last is None else (last.sequence, last.hash)
    rows = []
    for make_record in factories:
        sequence += 1
        record = make_record(sequence=sequence, previous=previous)
        line = record.line
        previous = digest_of(line)
        rows.append({"sequence": sequence, "run": record.run, "hash": previous, "body": line})
    if rows:
        connection.execute(insert(records), rows)


async def read_records(connection: AsyncConnection, chain: Chain) -> AsyncGenerator[str, None]:
    """Yield every line, oldest first, after `chain` has verified it."""
    oldest_first = select(records.c.hash, records.c.body).order_by(records.c.sequence)
    async with connection.stream(oldest_first) as rows:
        async for row in rows:
            chain.read(row.body)
            if chain.broken is None and row.hash != chain.head:
                chain.broken = f"record {chain.records} was changed"
            yield row.body
