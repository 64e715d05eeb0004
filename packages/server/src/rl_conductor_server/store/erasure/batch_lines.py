"""Erases the requests and results of runs from the files of batches."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable

from sqlalchemy import Connection, and_, select, tuple_, update

from rl_conductor_server.store.batches.files import ITEM_STATUS
from rl_conductor_server.store.batches.models import OPEN_STATUSES, Place
from rl_conductor_server.store.tables import batch_items, batches, files

ITEM_KEY = re.compile(r"(batch_[0-9a-f]+):([0-9]{1,9})")
"""The idempotency key of the run of an item, see `ClaimedItem`."""


def place_of(idempotency_key: str | None) -> Place | None:
    """Returns the place of the item that a run answers, if it may answer one."""
    match = ITEM_KEY.fullmatch(idempotency_key or "")
    return Place(match[1], int(match[2])) if match else None


def open_places(connection: Connection, places: Collection[Place]) -> set[Place]:
    """Returns the places of the items that have no result yet."""
    place = tuple_(batch_items.c.batch, batch_items.c.line)
    is_open = and_(place.in_(list(places)), batch_items.c.status.in_(OPEN_STATUSES))
    return {Place(*row) for row in connection.execute(select(batch_items.c.batch, batch_items.c.line).where(is_open))}


def erase_lines(connection: Connection, places: Iterable[Place], *, key: str) -> None:
    """Erases items of an API key: their lines become empty in the input file, and are left out of the results."""
    lines: dict[str, list[int]] = defaultdict(list)
    for batch, line in places:
        lines[batch].append(line)
    for batch, numbers in lines.items():
        query = select(batches.c.input_file).where(batches.c.id == batch, batches.c.key == key)
        input_file = connection.execute(query).scalar()
        if input_file is not None:
            _empty_lines(connection, input_file, set(numbers), key=key)
            _erase_results(connection, batch, numbers)


def _empty_lines(connection: Connection, file: str, numbers: Collection[int], *, key: str) -> None:
    is_file = and_(files.c.id == file, files.c.key == key)
    content = connection.execute(select(files.c.content).where(is_file)).scalar()
    if content is not None:  # the client may have deleted it
        lines = content.split("\n")
        content = "\n".join("" if number in numbers else line for number, line in enumerate(lines, start=1))
        values = {"content": content, "bytes": len(content.encode())}
        connection.execute(update(files).where(is_file).values(values))


def _erase_results(connection: Connection, batch: str, numbers: Collection[int]) -> None:
    is_item = and_(batch_items.c.batch == batch, batch_items.c.line.in_(numbers))
    sizes: dict[str, int] = defaultdict(int)
    for row in connection.execute(select(batch_items.c.status, batch_items.c.result_bytes).where(is_item)):
        sizes[row.status] += row.result_bytes
    erased = {"custom_id": "", "body": "", "result": None, "result_bytes": 0}
    connection.execute(update(batch_items).where(is_item).values(erased))
    shrunk = batches.c.stored_bytes - sum(sizes.values())
    connection.execute(update(batches).where(batches.c.id == batch).values(stored_bytes=shrunk))
    for part, status in ITEM_STATUS.items():
        is_part = and_(files.c.batch == batch, files.c.part == part)
        connection.execute(update(files).where(is_part).values(bytes=files.c.bytes - sizes[status]))
