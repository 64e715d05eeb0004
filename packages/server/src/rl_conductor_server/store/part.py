"""`StorePart`: the base of the parts of the `Store`."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Executable, Result

from rl_conductor_server.store.dialects import database_now, insert_into
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.write_behind import WriteBehindQueue


class StorePart:
    """The queries and writes of some tables."""

    def __init__(self, reader: StoreReader, write_queue: WriteBehindQueue) -> None:
        self._reader = reader
        self._write_queue = write_queue
        self._insert = partial(insert_into, dialect=reader.dialect)
        """Creates an `INSERT` that may have a clause for conflicts."""
        self._now = database_now(reader.dialect)
        """The database's current time, for statements."""

    async def _read(self, query: Executable) -> Result[Any]:
        """Returns the result of a query that sees all earlier writes of this process."""
        await self._write_queue.flush()
        return await self._reader.execute(query)
