"""Stores the sign-ins of browsers to the admin pages, shared by all processes."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, delete, insert, select

from rl_conductor_server.store.clock import DatabaseClock
from rl_conductor_server.store.part import StorePart
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.tables import sign_ins
from rl_conductor_server.store.write_behind import WriteBehindQueue


class SignIns(StorePart):
    """Browsers that signed in. A sign-in is identified by the digest of the browser's cookie."""

    def __init__(self, reader: StoreReader, write_queue: WriteBehindQueue, clock: DatabaseClock) -> None:
        super().__init__(reader, write_queue)
        self._clock = clock

    async def add(self, digest: str, *, seconds: float, identity: str | None = None) -> None:
        """Stores a sign-in that expires after `seconds`, with the identity that a provider gave."""
        expires = self._clock.now() + seconds
        statement = insert(sign_ins).values(digest=digest, expires=expires, identity=identity)
        await self._write_queue.execute(lambda connection: connection.execute(statement).close())

    async def is_valid(self, digests: Collection[str]) -> bool:
        """Returns whether a sign-in with one of these digests exists and has not expired."""
        query = select(sign_ins.c.digest).where(sign_ins.c.digest.in_(digests), sign_ins.c.expires > self._clock.now())
        return (await self._reader.execute(query)).first() is not None

    async def find_identity(self, digest: str) -> str | None:
        """Returns the identity of a sign-in at an OpenID Connect provider; `None` if there is no such sign-in."""
        query = select(sign_ins.c.identity).where(sign_ins.c.digest == digest, sign_ins.c.expires > self._clock.now())
        return (await self._reader.execute(query)).scalar_one_or_none()

    async def delete(self, digests: Collection[str]) -> None:
        statement = delete(sign_ins).where(sign_ins.c.digest.in_(digests))
        await self._write_queue.execute(lambda connection: connection.execute(statement).close())

    @staticmethod
    def delete_expired(connection: Connection, *, now: float) -> None:
        connection.execute(delete(sign_ins).where(sign_ins.c.expires < now))
