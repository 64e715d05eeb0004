"""Writes what runs report without making them wait: what comes meanwhile shares the next transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

log = logging.getLogger("rl_conductor.store")

Write = Callable[[AsyncConnection], Awaitable[object]]
"""Executes statements of which some may depend on others."""

LINGER = 0.02
"""Seconds that a write waits for others to share its transaction, unless somebody waits for it."""
PAUSES = (0.1, 0.5, 2.0, 2.0, 2.0, 2.0)
"""Seconds to wait for a database that is away, before each further attempt: a restart of it takes several."""


class Journal:
    """Writes on their way to the database, in the order in which they were added."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._pending: list[tuple[str | None, Write]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._writer: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def add(self, write: Write, *, news_of: str | None = None) -> None:
        """Have `write` made soon; news of a run may be dropped once there is better, see `drop_news`."""
        self._pending.append((news_of, write))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all(), name="journal")

    def drop_news(self, run: str) -> None:
        """Leave out what was to be told of a run on its way and has not been written yet."""
        self._pending = [(about, write) for about, write in self._pending if about != run]

    async def flush(self) -> None:
        """Wait until all that was added before is on disk, or known to be lost and logged."""
        if self._writer is not None and not self._writer.done():
            written = asyncio.get_running_loop().create_future()
            self._waiting.append(written)
            self._hurry.set()
            await asyncio.wait({written, self._writer}, return_when=asyncio.FIRST_COMPLETED)

    async def _write_all(self) -> None:
        while self._pending or self._waiting:
            if not self._waiting:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), LINGER)
            self._hurry.clear()
            batch, self._pending = [write for _, write in self._pending], []
            waiting, self._waiting = self._waiting, []
            try:
                await self._write_patiently(batch)
            except SQLAlchemyError as error:
                log.error("%d writes to the store are lost: %s", len(batch), type(error).__name__)  # noqa: TRY400
            finally:
                for written in waiting:
                    if not written.done():  # it is when who waited was cancelled
                        written.set_result(None)

    async def _write_patiently(self, batch: list[Write]) -> None:
        for pause in PAUSES:
            try:
                return await self._write(batch)
            except (OperationalError, InterfaceError) as away:
                log.warning("the store is away (%s); the next attempt is in %g s", type(away.orig).__name__, pause)
                await asyncio.sleep(pause)
        return await self._write(batch)

    async def _write(self, batch: list[Write]) -> None:
        if not batch:
            return
        async with self._engine.begin() as connection:
            for write in batch:
                await write(connection)
