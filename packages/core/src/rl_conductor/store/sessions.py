"""Which browsers have signed in, for all processes alike."""

from __future__ import annotations

import time

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rl_conductor.store.tables import sessions


class Sessions:
    """Each is known by the digest of its cookie; a part of the `Store`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def admit(self, digest: str, *, until: float) -> None:
        """Remember a browser."""
        async with self._engine.begin() as connection:
            await connection.execute(insert(sessions).values(digest=digest, expires=until))

    async def is_admitted(self, digest: str) -> bool:
        """Whether a browser is known, and still may come."""
        wanted = select(sessions.c.digest).where(sessions.c.digest == digest, sessions.c.expires > time.time())
        async with self._engine.connect() as connection:
            return (await connection.execute(wanted)).first() is not None

    async def dismiss(self, digest: str) -> None:
        """Forget a browser."""
        async with self._engine.begin() as connection:
            await connection.execute(delete(sessions).where(sessions.c.digest == digest))

    async def prune(self, connection: AsyncConnection) -> None:
        """Forget those whose time is over."""
        await connection.execute(delete(sessions).where(sessions.c.expires < time.time()))
