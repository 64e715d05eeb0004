"""The queue of batch items. A process holds a lease on each item that it runs, as it does on runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pydantic_core import from_json
from sqlalchemy import ColumnElement, Connection, Row, Select, and_, delete, func, select, tuple_, update

from rl_conductor_server.store.batches.batches import BatchStore, settle
from rl_conductor_server.store.batches.files import measure_usage
from rl_conductor_server.store.batches.lines import error_line
from rl_conductor_server.store.batches.models import UNFINISHED, ClaimedItem, ItemResult, Place
from rl_conductor_server.store.batches.turns import next_batch
from rl_conductor_server.store.contact import Contact
from rl_conductor_server.store.erasure.content import erase_content
from rl_conductor_server.store.part import StorePart
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.tables import batch_items, batches, runs
from rl_conductor_server.store.write_behind import WriteBehindQueue

MAX_ATTEMPTS = 5
"""Maximum number of starts of an item whose processes die; the item itself may be the reason."""
TOO_MANY_ATTEMPTS = f"processing was started {MAX_ATTEMPTS} times, and the process died each time"


class BatchItems(StorePart):
    """Claims, renews and ends items on behalf of one process."""

    def __init__(
        self,
        reader: StoreReader,
        write_queue: WriteBehindQueue,
        contact: Contact,
        *,
        owner: str,
        lease: float,
    ) -> None:
        """`lease` is in seconds, see `RunLeases`."""
        super().__init__(reader, write_queue)
        self._contact = contact
        self._owner = owner
        columns = batch_items.c.batch, batch_items.c.line, batch_items.c.body, batches.c.key
        self._with_key: Select[Any] = select(*columns).join(batches)
        not_before = func.coalesce(batch_items.c.not_before, 0.0)
        self._is_due = and_(batch_items.c.status == "queued", not_before <= self._now)
        self._is_expired = batch_items.c.heartbeat < self._now - lease

    async def has_batches(self) -> bool:
        """Returns `True` if there is a batch that has not ended. A query without a lock, for idle processes."""
        query = select(batches.c.id).where(batches.c.status.in_(UNFINISHED)).limit(1)
        return (await self._reader.execute(query)).first() is not None

    async def can_claim(self) -> bool:
        """Returns `True` if there is an item that nobody processes and that is due. A query without a lock, too."""
        is_orphaned = and_(batch_items.c.status == "running", self._is_expired)
        for condition in (self._is_due, is_orphaned):
            if (await self._reader.execute(select(batch_items.c.line).where(condition).limit(1))).first():
                return True
        return False

    async def count_queued(self) -> int:
        """Returns the number of queued items of all batches."""
        query = select(func.count()).select_from(batch_items).where(batch_items.c.status == "queued")
        return int((await self._reader.execute(query)).scalar_one())

    async def claim(
        self, limit: int, *, active: Collection[Place] = (), except_keys: Collection[str] = ()
    ) -> Sequence[ClaimedItem]:
        """Claims up to `limit` items, first those of dead processes, and none of some API keys.

        Keys take turns, and so do the batches of a key, see `next_batch`. `active` are the items that this process
        runs, whose leases may have expired while the store was away. After that, other processes first get the time of
        a lease to renew theirs.
        """
        return await self._write_queue.execute(
            lambda connection: self._claim(connection, limit, except_keys, active), undo=self._undo_claim
        )

    def _undo_claim(self, claimed: Sequence[ClaimedItem]) -> None:
        for item in claimed:
            self.release(item)

    def _claim(
        self, connection: Connection, limit: int, except_keys: Collection[str], active: Collection[Place]
    ) -> list[ClaimedItem]:
        items = self._with_key.add_columns(batch_items.c.custom_id, batch_items.c.attempts, batches.c.endpoint)
        is_orphaned = and_(batch_items.c.status == "running", self._is_expired, batches.c.status == "in_progress")
        orphaned = items.where(is_orphaned, batches.c.key.not_in(except_keys))
        is_next = and_(self._is_due, batch_items.c.batch == next_batch(self._is_due, except_keys))
        queued = items.where(is_next).order_by(batch_items.c.line).limit(1)
        rows: list[Row[Any]] = []
        if not self._contact.was_interrupted:
            orphans = connection.execute(orphaned.limit(limit + len(active)))
            rows = [row for row in orphans if (row.batch, row.line) not in active][:limit]
        for row in rows:
            self._start(connection, row)
        while len(rows) < limit and (queued_row := connection.execute(queued).first()):
            self._start(connection, queued_row)
            rows.append(queued_row)
        claimed = []
        for row in rows:
            if row.attempts < MAX_ATTEMPTS:
                claimed.append(ClaimedItem.model_validate(row, from_attributes=True))
            else:
                self._give_up(connection, row)
        return claimed

    def _start(self, connection: Connection, row: Row[Any]) -> None:
        values = {"status": "running", "owner": self._owner, "heartbeat": self._now}
        attempts = {"attempts": batch_items.c.attempts + 1}
        connection.execute(update(batch_items).where(_is_at(row.batch, row.line)).values(values | attempts))
        connection.execute(update(batches).where(batches.c.id == row.batch).values(served=self._now))

    def _give_up(self, connection: Connection, row: Row[Any]) -> None:
        text = error_line(row.batch, row.line, row.custom_id, code="server_error", message=TOO_MANY_ATTEMPTS)
        self._finish(connection, Place(row.batch, row.line), ItemResult(status="failed", text=text))

    async def renew(self, active: Collection[Place]) -> Sequence[Place]:
        """Renews the leases on the `active` items of this process.

        Returns:
            Those of its `active` items that it must stop: of a batch that is being cancelled, or lost to a process
            that has taken them over.
        """
        return await self._write_queue.execute(lambda connection: self._renew(connection, active))

    def _renew(self, connection: Connection, active: Collection[Place]) -> list[Place]:
        is_own = and_(
            batch_items.c.owner == self._owner,
            batch_items.c.status == "running",
            tuple_(batch_items.c.batch, batch_items.c.line).in_(list(active)),
        )
        connection.execute(update(batch_items).where(is_own).values(heartbeat=self._now))
        query = select(batch_items.c.batch, batch_items.c.line).join(batches).where(is_own)
        continued = connection.execute(query.where(batches.c.status != "cancelling")).all()
        return sorted(set(active) - {Place(*row) for row in continued})

    async def finish(self, item: ClaimedItem, result: ItemResult, *, max_total_bytes: int) -> ItemResult:
        """Stores the result of an item, unless another process has taken it over; the last one ends the batch.

        Returns:
            The result: another one if the files of its key would have more than `max_total_bytes`.
        """

        def finish(connection: Connection) -> ItemResult:
            size = _size(result)
            grows_by = size - len(item.body.encode())
            if size and measure_usage(connection, item.key).bytes + grows_by > max_total_bytes:
                message = f"the files of this key would have more than {max_total_bytes:,} bytes in total"
                text = error_line(*item.place, item.custom_id, code="storage_limit_exceeded", message=message)
                stored = ItemResult(status="failed", text=text)
            else:
                stored = result
            self._finish(connection, item.place, stored)
            return stored

        return await self._write_queue.execute(finish)

    def _finish(self, connection: Connection, place: Place, result: ItemResult) -> None:
        row = connection.execute(self._with_key.where(self._is_own(place))).first()
        if row is None:
            return
        _erase_private_run(connection, row)
        size = _size(result)
        if result.status == "cancelled":
            connection.execute(delete(batch_items).where(_is_at(*place)))
        else:
            values = {"status": result.status, "body": "", "result": result.text, "result_bytes": size}
            connection.execute(update(batch_items).where(_is_at(*place)).values(values))
        counts: dict[str, Any] = {"stored_bytes": batches.c.stored_bytes + size - len(row.body.encode())}
        counted = {"done": "completed", "failed": "failed"}.get(result.status)
        if counted is not None:
            counts[counted] = batches.c[counted] + 1
        connection.execute(update(batches).where(batches.c.id == place.batch).values(counts))
        settle(connection, place.batch, self._now)

    def release(self, item: ClaimedItem, *, wait: float = 0.0) -> None:
        """Puts an item back into the queue, from which nobody claims it for `wait` seconds."""

        def release(connection: Connection) -> None:
            query = select(batches.c.status).where(batches.c.id == item.batch)
            if connection.execute(query).scalar_one() == "cancelling":
                self._finish(connection, item.place, ItemResult(status="cancelled"))
            else:
                values = {"status": "queued", "owner": None, "attempts": batch_items.c.attempts - 1}
                values["not_before"] = self._now + wait
                connection.execute(update(batch_items).where(self._is_own(item.place)).values(values))

        self._write_queue.add(release)

    def _is_own(self, place: Place) -> ColumnElement[bool]:
        return and_(_is_at(*place), batch_items.c.owner == self._owner, batch_items.c.status == "running")

    async def tend(self, store: BatchStore) -> None:
        """Ends overdue batches, on behalf of all processes."""

        def tend(connection: Connection) -> None:
            store.end_overdue(connection)
            self._cancel_orphaned(connection)

        await self._write_queue.execute(tend)

    def _cancel_orphaned(self, connection: Connection) -> None:
        """Deletes items of dead processes if their batch is being cancelled or has expired."""
        query = self._with_key.where(batch_items.c.status == "running", self._is_expired)
        for row in connection.execute(query.where(batches.c.status.in_(["cancelling", "finalizing"]))).all():
            _erase_private_run(connection, row)
            connection.execute(delete(batch_items).where(_is_at(row.batch, row.line)))
            settle(connection, row.batch, self._now)


def _erase_private_run(connection: Connection, item: Row[Any]) -> None:
    """Deletes the content of the run of a request with `store: false`, stored to continue it after a crash."""
    if from_json(item.body).get("store") is not False:
        return
    is_its = and_(runs.c.key == item.key, runs.c.idempotency_key == f"{item.batch}:{item.line}")
    erase_content(connection, connection.execute(select(runs.c.id).where(is_its)).scalars().all())


def _size(result: ItemResult) -> int:
    """Returns the size of a result's line in its file."""
    return 0 if result.text is None else len(result.text.encode(errors="replace")) + 1


def _is_at(batch: str, line: int) -> ColumnElement[bool]:
    return and_(batch_items.c.batch == batch, batch_items.c.line == line)
