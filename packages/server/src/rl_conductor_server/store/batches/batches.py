"""Stores batches, and ends those that are cancelled, expired, or complete."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, RowMapping, and_, delete, func, insert, or_, select, update

from rl_conductor_server.store.batches.files import measure_usage
from rl_conductor_server.store.batches.lines import error_line
from rl_conductor_server.store.batches.models import (
    OPEN_STATUSES,
    UNFINISHED,
    BatchStatus,
    InputError,
    NewItem,
    StoredBatch,
)
from rl_conductor_server.store.part import StorePart
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.runs.retention import delete_some
from rl_conductor_server.store.tables import batch_items, batches, files
from rl_conductor_server.store.write_behind import WriteBehindQueue

INSERT_SIZE = 500
"""Maximum number of items inserted or ended in one transaction, during which no other process can write."""
VALIDATION_SECONDS = 600.0
"""Age after which a batch without all of its items counts as abandoned."""
ENDED: dict[BatchStatus, BatchStatus] = {
    "in_progress": "completed",
    "cancelling": "cancelled",
    "finalizing": "expired",
}
"""The status of a batch once none of its items is open, by the status before."""
EXPIRED = "the batch expired before this request was processed"
ABANDONED = InputError(code="server_error", message="the server stopped while it read the file; create the batch again")


BatchRefusal = Literal["unfinished", "count", "bytes"]
"""The limit that a batch would exceed."""


@dataclass(frozen=True)
class BatchLimits:
    """Limits of the batches of an API key."""

    unfinished: int
    """Maximum number of batches that have not ended."""
    count: int
    """Maximum number of batches."""
    bytes: int
    """Maximum size of all files, and of the requests and results of unfinished batches."""


class BatchStore(StorePart):
    """Batches, without their items."""

    def __init__(self, reader: StoreReader, write_queue: WriteBehindQueue) -> None:
        super().__init__(reader, write_queue)
        self.work_added = asyncio.Event()
        """Set when this process has queued items; see `BatchProcessor`."""

    async def add(self, batch: StoredBatch, items: Sequence[NewItem], limits: BatchLimits) -> BatchRefusal | None:
        """Stores a batch and queues its items, in several transactions.

        Returns:
            The limit that its key would exceed; then nothing is stored.
        """
        size = sum(len(item.body.encode()) + len(item.custom_id.encode()) for item in items)
        refusal = await self._write_queue.execute(lambda connection: _insert(connection, batch, size, limits))
        if refusal is not None:
            return refusal
        for start in range(0, len(items), INSERT_SIZE):
            rows = [_item_row(batch.id, item) for item in items[start : start + INSERT_SIZE]]
            await self._write_queue.execute(
                lambda connection, rows=rows: connection.execute(insert(batch_items), rows).close()  # type: ignore[misc]
            )
        if items:
            await self._write_queue.execute(lambda connection: self._start(connection, batch.id))
            self.work_added.set()
        return None

    def _start(self, connection: Connection, batch: str) -> None:
        is_new = and_(batch_items.c.batch == batch, batch_items.c.status == "new")
        connection.execute(update(batch_items).where(is_new).values(status="queued"))
        is_validated = and_(batches.c.id == batch, batches.c.status == "validating")
        connection.execute(update(batches).where(is_validated).values(status="in_progress"))

    async def get(self, batch: str, *, key: str) -> StoredBatch | None:
        """Returns a batch if it belongs to this API key."""
        query = select(batches).where(batches.c.id == batch, batches.c.key == key)
        row = (await self._reader.execute(query)).mappings().first()
        return None if row is None else _batch(row)

    async def list_batches(self, *, key: str, after: StoredBatch | None, limit: int) -> Sequence[StoredBatch]:
        """Lists batches of an API key that come `after` a batch, newest first."""
        query = select(batches).where(batches.c.key == key)
        if after is not None:
            is_older = and_(batches.c.created == after.created, batches.c.id < after.id)
            query = query.where(or_(batches.c.created < after.created, is_older))
        query = query.order_by(batches.c.created.desc(), batches.c.id.desc()).limit(limit)
        return [_batch(row) for row in (await self._reader.execute(query)).mappings()]

    async def cancel(self, batch: str) -> None:
        """Deletes the queued items of a batch; processes that run the others are to cancel them, too."""

        def cancel(connection: Connection) -> None:
            is_active = and_(batches.c.id == batch, batches.c.status == "in_progress")
            values = {"status": "cancelling", "cancelling": self._now}
            if connection.execute(update(batches).where(is_active).values(values)).rowcount:
                is_queued = and_(batch_items.c.batch == batch, batch_items.c.status == "queued")
                connection.execute(delete(batch_items).where(is_queued))
                settle(connection, batch, self._now)

        await self._write_queue.execute(cancel)

    # ------------------------------------------------------------------------------------------ upkeep

    def end_overdue(self, connection: Connection) -> None:
        """Fails the rest of expired batches, and batches that a server left before all items were stored."""
        is_abandoned = and_(batches.c.status == "validating", batches.c.created < self._now - VALIDATION_SECONDS)
        abandoned = connection.execute(select(batches.c.id).where(is_abandoned)).scalars().all()
        for batch in abandoned:
            connection.execute(delete(batch_items).where(batch_items.c.batch == batch))
            values = {"status": "failed", "ended": self._now, "total": 0, "errors": _errors_json((ABANDONED,))}
            connection.execute(update(batches).where(batches.c.id == batch).values(values))
        is_expired = and_(batches.c.status == "in_progress", batches.c.expires < self._now)
        expired = select(batches.c.id).where(is_expired)
        ids = {*connection.execute(expired).scalars()}
        connection.execute(update(batches).where(is_expired).values(status="finalizing"))
        for batch in ids | self._expire_items(connection):
            settle(connection, batch, self._now)

    def _expire_items(self, connection: Connection) -> set[str]:
        """Fails some of the queued items of expired batches, and returns the batches."""
        is_queued = and_(batch_items.c.status == "queued", batches.c.status == "finalizing")
        query = select(batch_items.c.batch, batch_items.c.line, batch_items.c.custom_id).join(batches)
        rows = connection.execute(query.where(is_queued).limit(INSERT_SIZE)).all()
        for row in rows:
            text = error_line(row.batch, row.line, row.custom_id, code="batch_expired", message=EXPIRED)
            values = {"status": "failed", "body": "", "result": text, "result_bytes": len(text.encode()) + 1}
            is_item = and_(batch_items.c.batch == row.batch, batch_items.c.line == row.line)
            connection.execute(update(batch_items).where(is_item).values(values))
            is_batch = batches.c.id == row.batch
            connection.execute(update(batches).where(is_batch).values(failed=batches.c.failed + 1))
        return {row.batch for row in rows}

    def delete_old(self, connection: Connection, *, before: float) -> int:
        """Deletes some files and batches from before a time, see `delete_some`; a batch after its items and files."""
        is_old = and_(batches.c.ended.is_not(None), batches.c.created < before)
        old = select(batches.c.id).where(is_old)
        return (
            delete_some(connection, batch_items, batch_items.c.batch.in_(old))
            or delete_some(connection, files, or_(files.c.created < before, files.c.batch.in_(old)))
            or delete_some(connection, batches, is_old)
        )


def _insert(connection: Connection, batch: StoredBatch, size: int, limits: BatchLimits) -> BatchRefusal | None:
    is_own = batches.c.key == batch.key
    count = select(func.count()).select_from(batches).where(is_own)
    unfinished = connection.execute(count.where(batches.c.status.in_(UNFINISHED))).scalar_one()
    if batch.ended is None and unfinished >= limits.unfinished:
        return "unfinished"
    if connection.execute(count).scalar_one() >= limits.count:
        return "count"
    if size and measure_usage(connection, batch.key).bytes + size > limits.bytes:
        return "bytes"
    encoded = {"labels": json.dumps(batch.labels), "errors": _errors_json(batch.errors), "stored_bytes": size}
    connection.execute(insert(batches).values(batch.model_dump(exclude={"labels", "errors"}) | encoded))
    return None


def settle(connection: Connection, batch: str, now: Any) -> None:
    """Ends a batch if none of its items is open, and creates its output and error files."""
    row = connection.execute(select(batches).where(batches.c.id == batch)).mappings().one()
    is_item = batch_items.c.batch == batch
    is_open = and_(is_item, batch_items.c.status.in_(OPEN_STATUSES))
    if row["status"] not in ENDED or connection.execute(select(batch_items.c.line).where(is_open).limit(1)).first():
        return
    sums = select(batch_items.c.status, func.sum(batch_items.c.result_bytes).label("bytes")).where(is_item)
    sizes = {status: int(size) for status, size in connection.execute(sums.group_by(batch_items.c.status)) if size}
    values: dict[str, Any] = {"status": ENDED[row["status"]], "ended": now}
    for status, part, column in (("done", "output", "output_file"), ("failed", "errors", "error_file")):
        if status in sizes:
            values[column] = f"file-{secrets.token_hex(12)}"
            file = {"id": values[column], "key": row["key"], "name": f"{batch}_{part}.jsonl", "purpose": "batch_output"}
            file |= {"bytes": sizes[status], "created": now, "batch": batch, "part": part}
            connection.execute(insert(files).values(file))
    connection.execute(update(batches).where(batches.c.id == batch).values(values))


def _item_row(batch: str, item: NewItem) -> dict[str, Any]:
    return {"batch": batch, **item.model_dump(), "status": "new", "attempts": 0, "result_bytes": 0}


def _batch(row: RowMapping) -> StoredBatch:
    decoded = {"labels": json.loads(row["labels"]), "errors": json.loads(row["errors"] or "[]")}
    return StoredBatch.model_validate({name: row[name] for name in StoredBatch.model_fields} | decoded)


def _errors_json(errors: Sequence[InputError]) -> str | None:
    return json.dumps([error.model_dump() for error in errors]) if errors else None
