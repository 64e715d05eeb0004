"""Appends to and reads the audit record: one hash chain for all processes, from which nothing is ever deleted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Protocol

from sqlalchemy import Connection, insert, select

from rl_conductor_server.store.audit import BEGINNING, AuditRecord, Chain, digest_of
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.tables import audit_records

PAGE_SIZE = 500
"""Number of records that are read at a time."""


class RecordFactory(Protocol):
    """Builds the record for a given position in the chain."""

    def __call__(self, *, sequence: int, previous: str) -> AuditRecord: ...


def append_records(connection: Connection, factories: Iterable[RecordFactory]) -> None:
    """Appends one record per factory to the chain.

    Must run in a writer transaction: the write lock ensures that only one process appends at a time.
    """
    newest = select(audit_records.c.sequence, audit_records.c.digest).order_by(audit_records.c.sequence.desc()).limit(1)
    last = connection.execute(newest).first()
    sequence, previous = (0, BEGINNING) if last is None else (last.sequence, last.digest)
    rows = []
    for make_record in factories:
        sequence += 1
        record = make_record(sequence=sequence, previous=previous)
        line = record.line
        previous = digest_of(line)
        rows.append({"sequence": sequence, "run": record.run, "digest": previous, "line": line})
    if rows:
        connection.execute(insert(audit_records), rows)


async def read_records(reader: StoreReader, chain: Chain) -> AsyncGenerator[str, None]:
    """Yields every line, oldest first, after `chain` has verified it."""
    columns = audit_records.c
    oldest_first = select(columns.sequence, columns.digest, columns.line).order_by(columns.sequence)
    page = (await reader.execute(oldest_first.limit(PAGE_SIZE))).all()
    while page:
        for row in page:
            chain.read(row.line)
            if chain.broken is None and row.digest != chain.head:
                chain.broken = f"record {chain.records} was changed"
            yield row.line
        next_page = oldest_first.where(columns.sequence > page[-1].sequence).limit(PAGE_SIZE)
        page = (await reader.execute(next_page)).all()
