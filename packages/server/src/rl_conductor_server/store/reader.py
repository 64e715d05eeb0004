"""Runs queries to their end, even if their caller is cancelled.

A cancelled query would leave its connection open: whoever cancels a request repeats it until the request ends (as AnyIO
does when a client disconnects), which also cancels the closing of the connection. So each query has a task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sqlalchemy import Executable, Result
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

T = TypeVar("T")

ABANDONED_SECONDS = 5.0
"""Seconds that a query may go on after its caller was cancelled."""


class StoreReader:
    """Reads from the database, with a connection for each query."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    async def execute(self, query: Executable) -> Result[Any]:
        """Returns the result of a query, with all its rows."""

        async def execute(connection: AsyncConnection) -> Result[Any]:
            return (await connection.execute(query)).freeze()()

        return await self.run(execute)

    async def run(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Runs `work` with a connection; it goes on for up to `ABANDONED_SECONDS` if the caller is cancelled."""
        task = asyncio.create_task(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                asyncio.get_running_loop().call_later(ABANDONED_SECONDS, task.cancel)
            raise

    async def _run(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async with self._engine.connect() as connection:
            return await work(connection)

    async def aclose(self) -> None:
        """Waits for queries of cancelled callers, and closes all connections."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=ABANDONED_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._engine.dispose()
