"""Stores the API keys and administrators' keys that were created at run time, by the hash of their secret."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, and_, insert, or_, select, update

from rl_conductor.types import Value
from rl_conductor_server.store.clock import DatabaseClock
from rl_conductor_server.store.part import StorePart
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.tables import api_keys
from rl_conductor_server.store.write_behind import WriteBehindQueue


class StoredKey(Value):
    """A secret of an API key or an administrator; a key that was rotated has several, under one name."""

    sha256: str
    name: str
    admin: bool = False
    entry: str
    """The limits as JSON: a `KeyEntry` without its hash."""
    created: float
    """Seconds since 1970."""
    expires: float | None = None
    revoked: float | None = None

    def is_valid(self, now: float) -> bool:
        """Returns `True` unless it was revoked or has expired."""
        return self.revoked is None and (self.expires is None or now < self.expires)


class KeyStore(StorePart):
    """Created keys. No row is ever deleted, so that a name in the audit record means one key for ever."""

    def __init__(self, reader: StoreReader, write_queue: WriteBehindQueue, clock: DatabaseClock) -> None:
        super().__init__(reader, write_queue)
        self._clock = clock

    async def list_all(self) -> Sequence[StoredKey]:
        """Lists all secrets by name, the newest of each name first."""
        query = select(api_keys).order_by(api_keys.c.name, api_keys.c.created.desc())
        return [StoredKey.model_validate(row) for row in (await self._reader.execute(query)).mappings()]

    async def add(self, key: StoredKey) -> bool:
        """Stores a new key. `False` if its name was used before."""

        def add(connection: Connection) -> bool:
            if connection.execute(select(api_keys.c.name).where(api_keys.c.name == key.name)).first():
                return False
            connection.execute(insert(api_keys).values(key.model_dump()))
            return True

        return await self._write_queue.execute(add)

    async def rotate(self, name: str, sha256: str, *, grace_seconds: float) -> bool:
        """Stores a new secret of a valid key; its old ones expire after `grace_seconds`. `False` if there is none."""
        now = self._clock.now()

        def rotate(connection: Connection) -> bool:
            newest = select(api_keys).where(_is_valid(name, now)).order_by(api_keys.c.created.desc()).limit(1)
            row = connection.execute(newest).mappings().first()
            if row is None:
                return False
            ends = now + grace_seconds
            expires_later = and_(_is_valid(name, now), or_(api_keys.c.expires.is_(None), api_keys.c.expires > ends))
            connection.execute(update(api_keys).where(expires_later).values(expires=ends))
            connection.execute(insert(api_keys).values({**row, "sha256": sha256, "created": now}))
            return True

        return await self._write_queue.execute(rotate)

    async def revoke(self, name: str) -> bool:
        """Revokes all secrets of a key. `False` if none of them was valid."""
        now = self._clock.now()
        statement = update(api_keys).where(_is_valid(name, now)).values(revoked=now)
        return await self._write_queue.execute(lambda connection: bool(connection.execute(statement).rowcount))


def _is_valid(name: str, now: float) -> ColumnElement[bool]:
    has_not_expired = or_(api_keys.c.expires.is_(None), api_keys.c.expires > now)
    return and_(api_keys.c.name == name, api_keys.c.revoked.is_(None), has_not_expired)
