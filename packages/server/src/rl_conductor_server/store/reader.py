"""Runs queries to their end, even if their caller is cancelled, and gives up on a database that does not answer.

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
"""Seconds that a query may go on after its caller stopped to wait for it."""
CHECK_SECONDS = 1.0
"""Interval at which a query that is not done is checked: it may take long, or the database does not answer at all."""


class StoreReader:
    """Reads from the database, with a connection for each query."""

    def __init__(self, engine: AsyncEngine, check_available: Callable[[], None]) -> None:
        """`check_available` is called while a query takes long, and ends the wait for it by raising."""
        self._engine = engine
        self._check_available = check_available
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def dialect(self) -> str:
        """The kind of database: `sqlite` or `postgresql`."""
        return self._engine.dialect.name

    async def execute(self, query: Executable) -> Result[Any]:
        """Returns the result of a query, with all its rows."""

        async def execute(connection: AsyncConnection) -> Result[Any]:
            return (await connection.execute(query)).freeze()()

        return await self.run(execute)

    async def run(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Runs `work` with a connection; it goes on for up to `ABANDONED_SECONDS` if the caller no longer waits.

        Raises:
            StoreUnavailableError: the database has not taken writes for a while, and does not answer this query either.
        """
        task = asyncio.create_task(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._end)
        try:
            while not (await asyncio.wait({task}, timeout=CHECK_SECONDS))[0]:
                self._check_available()
            return task.result()
        finally:
            if not task.done():
                asyncio.get_running_loop().call_later(ABANDONED_SECONDS, task.cancel)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # of a query whose caller is gone, nobody else retrieves it

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
