"""Which browsers have signed in, for all processes alike."""

from __future__ import annotations

import time

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from rl_conductor_server.store.tables import sessions
from rl_conductor_server.store.write_behind import Journal


class Sessions:
    """Each is known by the digest of its cookie; a part of the `Store`."""

    def __init__(self, engine: AsyncEngine, journal: Journal) -> None:
        self._engine = engine
        self._journal = journal

    async def admit(self, digest: str, *, until: float) -> None:
        """Remember a browser."""
        admitted = insert(sessions).values(digest=digest, expires=until)
        await self._journal.run(lambda connection: connection.execute(admitted).close())

    async def is_admitted(self, digest: str) -> bool:
        """Whether a browser is known, and still may come."""
        wanted = select(sessions.c.digest).where(sessions.c.digest == digest, sessions.c.expires > time.time())
        async with self._engine.connect() as connection:
            return (await connection.execute(wanted)).first() is not None

    async def dismiss(self, digest: str) -> None:
        """Forget a browser."""
        dismissed = delete(sessions).where(sessions.c.digest == digest)
        await self._journal.run(lambda connection: connection.execute(dismissed).close())

    def prune(self, connection: Connection) -> None:
        """Forget those whose time is over."""
        connection.execute(delete(sessions).where(sessions.c.expires < time.time()))
