"""Stores files of API keys. The results of a batch are read from its items and not stored twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from itertools import accumulate

from sqlalchemy import Connection, and_, delete, func, insert, or_, select, update

from rl_conductor_server.store.batches.models import FilePurpose, Quota, StoredFile
from rl_conductor_server.store.part import StorePart
from rl_conductor_server.store.tables import batch_items, batches, files

PAGE_SIZE, PAGE_BYTES = 64, 2**18
"""Number and size of results that are read at once; a longer one is read by itself."""
LISTED = [column for column in files.columns if column.name != "content"]
ITEM_STATUS = {"output": "done", "errors": "failed"}
"""The status of the items whose results are in each part."""


def measure_usage(connection: Connection, key: str) -> Quota:
    """Returns the size of all files of an API key and of its unfinished batches, and the number of files."""
    of_files = select(func.sum(files.c.bytes), func.count()).where(files.c.key == key)
    size, count = connection.execute(of_files).one()
    is_unfinished = and_(batches.c.key == key, batches.c.ended.is_(None))
    unfinished = connection.execute(select(func.sum(batches.c.stored_bytes)).where(is_unfinished)).scalar_one()
    return Quota(int(size or 0) + int(unfinished or 0), count)


class FileStore(StorePart):
    """Uploaded files, and the results of batches as files."""

    async def add(self, file: StoredFile, content: str, quota: Quota) -> Quota | None:
        """Stores an uploaded file, unless its key would exceed the quota.

        Returns:
            What it would then use, if it is too much.
        """

        def write(connection: Connection) -> Quota | None:
            used = measure_usage(connection, file.key)
            needed = Quota(used.bytes + file.bytes, used.count + 1)
            if needed.bytes > quota.bytes or needed.count > quota.count:
                return needed
            connection.execute(insert(files).values(**file.model_dump(), content=content))
            return None

        return await self._write_queue.execute(write)

    async def get(self, file: str, *, key: str) -> StoredFile | None:
        """Returns a file if it belongs to this API key."""
        query = select(*LISTED).where(files.c.id == file, files.c.key == key)
        row = (await self._reader.execute(query)).mappings().first()
        return None if row is None else StoredFile.model_validate(row)

    async def list_files(
        self, *, key: str, purpose: FilePurpose | None, after: StoredFile | None, limit: int, newest_first: bool
    ) -> Sequence[StoredFile]:
        """Lists files of an API key that come `after` a file."""
        query = select(*LISTED).where(files.c.key == key)
        if purpose is not None:
            query = query.where(files.c.purpose == purpose)
        time, name = files.c.created, files.c.id
        if after is not None and newest_first:
            query = query.where(or_(time < after.created, and_(time == after.created, name < after.id)))
        elif after is not None:
            query = query.where(or_(time > after.created, and_(time == after.created, name > after.id)))
        order = (time.desc(), name.desc()) if newest_first else (time, name)
        rows = (await self._reader.execute(query.order_by(*order).limit(limit))).mappings().all()
        return [StoredFile.model_validate(row) for row in rows]

    async def read_upload(self, file: str, *, key: str) -> str | None:
        """Returns the content of an uploaded file if it belongs to this API key."""
        query = select(files.c.content).where(files.c.id == file, files.c.key == key)
        content: str | None = (await self._reader.execute(query)).scalar_one_or_none()
        return content

    async def read_results(self, file: StoredFile) -> AsyncGenerator[str, None]:
        """Yields the lines of a file with results of a batch, several at a time."""
        assert file.part is not None
        line, number = 0, batch_items.c.line
        is_result = and_(
            batch_items.c.batch == file.batch,
            batch_items.c.status == ITEM_STATUS[file.part],
            batch_items.c.result.is_not(None),
        )
        while True:
            query = select(number, batch_items.c.result_bytes).where(is_result, number > line)
            rows = (await self._reader.execute(query.order_by(number).limit(PAGE_SIZE))).all()
            if not rows:
                return
            count = sum(size <= PAGE_BYTES for size in accumulate(row.result_bytes for row in rows))
            first, line = rows[0].line, rows[max(count, 1) - 1].line
            page = select(batch_items.c.result).where(is_result, number.between(first, line)).order_by(number)
            yield "".join(f"{result}\n" for result in (await self._reader.execute(page)).scalars())

    async def delete(self, file: StoredFile) -> None:
        """Deletes a file with its content. A batch that was created from it continues."""

        def erase(connection: Connection) -> None:
            connection.execute(delete(files).where(files.c.id == file.id))
            if file.part is not None:
                is_part = and_(batch_items.c.batch == file.batch, batch_items.c.status == ITEM_STATUS[file.part])
                connection.execute(update(batch_items).where(is_part).values(result=None))

        await self._write_queue.execute(erase)
