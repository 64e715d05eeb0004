"""Removes traces of erased rows in SQLite: entries of the index of texts, and old pages in the write-ahead log.

The space of deleted rows is overwritten at once, see `PRAGMA secure_delete` in `database`. Postgres reuses it after
`VACUUM`, and has no way to do so for a single row.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.write_behind import WriteBehindQueue

log = logging.getLogger("rl_conductor_server.store")

MERGE_PAGES = 200
"""Number of pages of the index that are merged in one transaction, during which no other process can write."""
LOG_TIMEOUT = 0.2
"""Seconds that the write-ahead log waits for queries that still read it; meanwhile no process can write."""
LOG_ATTEMPTS, LOG_PAUSE = 10, 1.0
"""Number of times that this is tried, and seconds between them."""


async def merge_index(write_queue: WriteBehindQueue) -> None:
    """Merges the index of texts, in which deleted entries stay until then. Takes long if it has many texts."""
    pages = -MERGE_PAGES  # a negative number begins a merge of the whole index, and a positive one continues it
    while await write_queue.execute(partial(_merge_pages, pages=pages)):
        pages = MERGE_PAGES


async def empty_log(reader: StoreReader) -> None:
    """Empties the write-ahead log, or logs a warning if queries read it for long."""
    for _ in range(LOG_ATTEMPTS):
        if await reader.run(_empty_log):
            return
        await asyncio.sleep(LOG_PAUSE)
    log.warning("the write-ahead log of the store has erased texts until it is overwritten: a query took long")


def _merge_pages(connection: Connection, *, pages: int) -> bool:
    """Returns `False` once there is nothing to merge."""
    total_changes = text("SELECT total_changes()")
    before: int = connection.execute(total_changes).scalar_one()
    connection.execute(text("INSERT INTO run_trigrams (run_trigrams, rank) VALUES ('merge', :pages)"), {"pages": pages})
    changes: int = connection.execute(total_changes).scalar_one() - before
    return changes > 1


async def _empty_log(connection: AsyncConnection) -> bool:
    """Copies the write-ahead log into the database, and empties it; `False` if a query still reads it."""
    (timeout,) = (await connection.execute(text("PRAGMA busy_timeout"))).one()
    await connection.execute(text(f"PRAGMA busy_timeout = {LOG_TIMEOUT * 1_000:.0f}"))
    try:
        is_busy, *_ = (await connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))).one()
    finally:
        await connection.execute(text(f"PRAGMA busy_timeout = {timeout}"))
    return not is_busy
