"""The audit record in the database: one chain over all processes that share it, which nothing here ever shortens."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from sqlalchemy import insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from rl_conductor.audit import BEGINNING, Chain, Ended, digest_of, record_of
from rl_conductor.store.tables import records
from rl_conductor.trace import Trace

ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(7206317)"
"""Of all processes, only one may lengthen the chain. SQLite lets only one write in the first place."""


async def append(connection: AsyncConnection, trace: Trace, ended: Ended) -> None:
    """Add the record of a run to the chain, in a transaction that has written before."""
    if connection.dialect.name == "postgresql":
        await connection.execute(text(ONE_AT_A_TIME))
    newest = select(records.c.sequence, records.c.hash).order_by(records.c.sequence.desc()).limit(1)
    last = (await connection.execute(newest)).first()
    sequence, previous = (1, BEGINNING) if last is None else (last.sequence + 1, last.hash)
    line = record_of(trace, ended, sequence=sequence, previous=previous).line
    await connection.execute(insert(records).values(sequence=sequence, run=ended.run, hash=digest_of(line), body=line))


async def read(connection: AsyncConnection, chain: Chain) -> AsyncGenerator[str, None]:
    """Every line, from the first, each once `chain` has read it."""
    whole = select(records.c.hash, records.c.body).order_by(records.c.sequence)
    async with connection.stream(whole) as rows:
        async for row in rows:
            chain.read(row.body)
            if chain.broken is None and row.hash != chain.head:
                chain.broken = f"record {chain.records} was changed"
            yield row.body
