"""`StorePart`: the base of the parts of the `Store`."""

from __future__ import annotations

from sqlalchemy.dialects import postgresql, sqlite

from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.write_behind import WriteBehindQueue


class StorePart:
    """The queries and writes of some tables."""

    def __init__(self, reader: StoreReader, write_queue: WriteBehindQueue) -> None:
        self._reader = reader
        self._write_queue = write_queue
        self._insert = (sqlite if reader.dialect == "sqlite" else postgresql).insert
        """Creates an `INSERT` that may have a clause for conflicts."""
