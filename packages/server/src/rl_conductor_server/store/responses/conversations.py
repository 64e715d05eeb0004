"""Stores conversations of the Responses API: their metadata and their items in order."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from pydantic import Field
from sqlalchemy import ColumnElement, Connection, bindparam, delete, exists, func, or_, select, tuple_, update

from rl_conductor.types import Text, Value
from rl_conductor_server.store.batches.models import Quota
from rl_conductor_server.store.part import StorePart
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.runs.retention import DELETE_BATCH_SIZE, delete_some
from rl_conductor_server.store.tables import conversation_items, conversations
from rl_conductor_server.store.write_behind import WriteBehindQueue

ITEMS = conversation_items.c


class Conversation(Value):
    """A conversation of an API key."""

    id: str
    key: str
    created: float
    """Seconds since 1970."""
    metadata: dict[Text, Text] = Field(default_factory=dict)


class ConversationStore(StorePart):
    """Conversations. Items are deleted `retain_days` after they were added, a conversation after its last change.

    A conversation has one turn at a time: from before its items are read until the answer is added to them, the turn
    locks it, for all processes. The lock expires if all processes of the turn die.

    Almost every method takes the API key that the conversation must belong to.
    """

    def __init__(self, reader: StoreReader, write_queue: WriteBehindQueue, lease: float) -> None:
        """`lease` is in seconds, see `RunLeases`."""
        super().__init__(reader, write_queue)
        self._is_unlocked = or_(conversations.c.turn.is_(None), conversations.c.turn_heartbeat < self._now - lease)
        self._turns = Counter[tuple[str, str]]()
        """The number of requests of this process that share each lock, by conversation and turn."""

    async def create(self, conversation: Conversation, items: Sequence[dict[str, Any]]) -> None:
        """Stores a new conversation with its first items."""
        metadata = json.dumps(conversation.metadata)
        values = conversation.model_dump(exclude={"metadata"}) | {
            "metadata": metadata,
            "updated": conversation.created,
            "bytes": len(metadata),
        }

        def write(connection: Connection) -> None:
            connection.execute(self._insert(conversations).values(values))
            self.append(connection, conversation.id, items, key=conversation.key)

        await self._write_queue.execute(write)

    async def measure(self, key: str) -> Quota:
        """Returns the size and the number of all conversations of an API key."""
        query = select(func.sum(conversations.c.bytes).label("size"), func.count().label("number"))
        row = (await self._read(query.where(conversations.c.key == key))).mappings().one()
        return Quota(int(row["size"] or 0), row["number"])

    async def get(self, conversation: str, *, key: str) -> Conversation | None:
        """Returns a conversation if it belongs to this API key."""
        row = (await self._read(select(conversations).where(_is_own(conversation, key)))).mappings().first()
        if row is None:
            return None
        metadata = json.loads(row["metadata"])
        return Conversation(id=row["id"], key=row["key"], created=row["created"], metadata=metadata)

    async def lock(self, conversation: str, turn: str, *, key: str) -> bool:
        """Locks a conversation for a turn; `False` if it has another one. Each call needs an `unlock`.

        Repeated requests of the same turn share the lock.
        """
        is_free = or_(self._is_unlocked, conversations.c.turn == turn)
        values = {"turn": turn, "turn_heartbeat": self._now}
        statement = update(conversations).where(_is_own(conversation, key), is_free).values(values)

        def undo(is_locked: bool) -> None:
            if is_locked:
                self._turns[conversation, turn] += 1
                self.unlock(conversation, turn)

        is_locked = await self._write_queue.execute(
            lambda connection: bool(connection.execute(statement).rowcount), undo=undo
        )
        if is_locked:
            self._turns[conversation, turn] += 1
        return is_locked

    def unlock(self, conversation: str, turn: str) -> None:
        """Unlocks a conversation, after everything that was added to it, unless another request shares the lock."""
        self._turns[conversation, turn] -= 1
        if self._turns[conversation, turn] > 0:
            return
        del self._turns[conversation, turn]
        is_locked = (conversations.c.id == conversation) & (conversations.c.turn == turn)
        statement = update(conversations).where(is_locked).values(turn=None, turn_heartbeat=None)
        self._write_queue.add(lambda connection: connection.execute(statement))

    @property
    def locks(self) -> Sequence[tuple[str, str]]:
        """The conversations that this process has locked, with their turns."""
        return list(self._turns)

    def renew_locks(self, connection: Connection, locks: Sequence[tuple[str, str]]) -> None:
        """Renews locks of this process."""
        if locks:
            ids, turns = zip(*locks, strict=True)
            is_locked = conversations.c.id.in_(ids) & conversations.c.turn.in_(turns)
            connection.execute(update(conversations).where(is_locked).values(turn_heartbeat=self._now))

    async def set_metadata(self, conversation: str, metadata: dict[str, str], *, key: str) -> None:
        """Replaces the metadata of a conversation."""
        encoded = json.dumps(metadata)
        size = conversations.c.bytes + len(encoded) - func.length(conversations.c.metadata)
        values = {"metadata": encoded, "updated": self._now, "bytes": size}
        statement = update(conversations).where(_is_own(conversation, key)).values(values)
        await self._write_queue.execute(lambda connection: connection.execute(statement).close())

    async def delete(self, conversation: str, *, key: str) -> None:
        """Deletes a conversation with its items; the responses in it stay."""

        def erase(connection: Connection) -> None:
            if connection.execute(delete(conversations).where(_is_own(conversation, key))).rowcount:
                connection.execute(delete(conversation_items).where(ITEMS.conversation == conversation))

        await self._write_queue.execute(erase)

    async def add_items(self, conversation: str, items: Sequence[dict[str, Any]], *, key: str) -> bool:
        """Adds items at the end of a conversation; `False` if it is locked."""

        def write(connection: Connection) -> bool:
            is_unlocked = update(conversations).where(_is_own(conversation, key), self._is_unlocked)
            if not connection.execute(is_unlocked.values(updated=self._now)).rowcount:
                return False
            self.append(connection, conversation, items, key=key)
            return True

        return await self._write_queue.execute(write)

    def append(self, connection: Connection, conversation: str, items: Sequence[dict[str, Any]], *, key: str) -> None:
        """Adds items, but for ids that it has, at the end of a conversation that was not deleted meanwhile."""
        touch = update(conversations).where(_is_own(conversation, key)).values(updated=self._now)
        if not connection.execute(touch).rowcount or not items:
            return
        last = connection.execute(select(func.max(ITEMS.position)).where(ITEMS.conversation == conversation)).scalar()
        rows = [
            {"conversation": conversation, "id": item["id"], "position": position, "body": json.dumps(item)}
            for position, item in enumerate(items, start=0 if last is None else last + 1)
        ]
        insert = (
            self._insert(conversation_items)
            .values(created=self._now)
            .on_conflict_do_nothing(index_elements=["conversation", "id"])
        )
        size = sum(len(row["body"]) for row in rows if connection.execute(insert, row).rowcount)
        grow = update(conversations).where(conversations.c.id == conversation)
        connection.execute(grow.values(bytes=conversations.c.bytes + size))

    async def measure_items(self, conversation: str, *, key: str) -> Sequence[int]:
        """Returns the length of each item as JSON, newest first."""
        query = select(func.length(ITEMS.body)).where(ITEMS.conversation == conversation, _exists(conversation, key))
        return list((await self._read(query.order_by(ITEMS.position.desc()))).scalars())

    async def load_items(self, conversation: str, *, key: str, limit: int) -> list[str]:
        """Returns up to `limit` of the newest items as JSON, oldest first."""
        query = select(ITEMS.body).where(ITEMS.conversation == conversation, _exists(conversation, key))
        query = query.order_by(ITEMS.position.desc()).limit(limit)
        return list((await self._reader.execute(query)).scalars())[::-1]

    async def find_items(self, ids: Collection[str], *, key: str, max_bytes: int) -> list[str] | None:
        """Returns the items with these ids in all conversations of an API key, as JSON.

        Returns:
            `None` if they have more than `max_bytes`.
        """
        is_own = ITEMS.id.in_(ids), ITEMS.conversation.in_(select(conversations.c.id).where(conversations.c.key == key))
        size = (await self._read(select(func.sum(func.length(ITEMS.body))).where(*is_own))).scalar_one()
        if int(size or 0) > max_bytes:
            return None
        return list((await self._reader.execute(select(ITEMS.body).where(*is_own))).scalars())

    async def measure_page(
        self, conversation: str, *, key: str, after: str | None, limit: int, newest_first: bool
    ) -> dict[str, int] | None:
        """Returns the lengths of up to `limit` items that follow item `after`, by id; `None` if that doesn't exist."""
        columns = ITEMS.id, func.length(ITEMS.body).label("size")
        query = select(*columns).where(ITEMS.conversation == conversation, _exists(conversation, key)).limit(limit)
        if after is not None:
            rows = await self._read(select(ITEMS.position).where(_is_item(conversation, key, after)))
            position = rows.scalar_one_or_none()
            if position is None:
                return None
            query = query.where(ITEMS.position < position if newest_first else ITEMS.position > position)
        query = query.order_by(ITEMS.position.desc() if newest_first else ITEMS.position)
        return {row.id: row.size for row in await self._read(query)}

    async def measure_item(self, conversation: str, item: str, *, key: str) -> int | None:
        """Returns the length of an item; `None` if there is no such item."""
        size = select(func.length(ITEMS.body)).where(_is_item(conversation, key, item))
        return (await self._read(size)).scalar_one_or_none()

    async def get_items(self, conversation: str, ids: Sequence[str], *, key: str) -> list[dict[str, Any]]:
        """Returns items in the order of their ids, but for those that don't exist."""
        is_item = ITEMS.conversation == conversation, ITEMS.id.in_(ids), _exists(conversation, key)
        rows = (await self._reader.execute(select(ITEMS.id, ITEMS.body).where(*is_item))).all()
        items = await asyncio.to_thread(lambda: {row.id: json.loads(row.body) for row in rows})
        return [items[name] for name in ids if name in items]

    async def delete_item(self, conversation: str, item: str, *, key: str) -> None:
        statement = delete(conversation_items).where(_is_item(conversation, key, item))

        def erase(connection: Connection) -> None:
            size = connection.execute(statement.returning(func.length(ITEMS.body))).scalar()
            shrink = update(conversations).where(conversations.c.id == conversation)
            connection.execute(shrink.values(bytes=conversations.c.bytes - (size or 0)))

        await self._write_queue.execute(erase)

    async def count_items(self, conversation: str, *, key: str) -> int:
        """Returns the number of items."""
        query = select(func.count()).where(ITEMS.conversation == conversation, _exists(conversation, key))
        count: int = (await self._read(query)).scalar_one()
        return count

    def delete_old(self, connection: Connection, *, before: float) -> int:
        """Deletes some items and conversations from before a time, see `delete_some`."""
        columns = ITEMS.conversation, ITEMS.id, func.length(ITEMS.body).label("size")
        rows = connection.execute(select(*columns).where(ITEMS.created < before).limit(DELETE_BATCH_SIZE)).all()
        if not rows:
            return delete_some(connection, conversations, conversations.c.updated < before)
        sizes = Counter[str]()
        for row in rows:
            sizes[row.conversation] += row.size
        shrink = update(conversations).where(conversations.c.id == bindparam("of"))
        shrink = shrink.values(bytes=conversations.c.bytes - bindparam("size"))
        connection.execute(shrink, [{"of": name, "size": size} for name, size in sizes.items()])
        is_deleted = tuple_(ITEMS.conversation, ITEMS.id).in_([(row.conversation, row.id) for row in rows])
        return connection.execute(delete(conversation_items).where(is_deleted)).rowcount


def _is_own(conversation: str, key: str) -> ColumnElement[bool]:
    return (conversations.c.id == conversation) & (conversations.c.key == key)


def _exists(conversation: str, key: str) -> ColumnElement[bool]:
    return exists().where(_is_own(conversation, key))


def _is_item(conversation: str, key: str, item: str) -> ColumnElement[bool]:
    return (ITEMS.conversation == conversation) & (ITEMS.id == item) & _exists(conversation, key)
