"""Stores the requests and answers of the Responses API, to which later requests refer by id."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from sqlalchemy import CTE, ColumnElement, Connection, Executable, delete, func, insert, literal, select, update

from rl_conductor.types import Text, Value
from rl_conductor_server.store.dialects import count_octets
from rl_conductor_server.store.erasure.content import erase_content
from rl_conductor_server.store.erasure.copies import find_internal_copies
from rl_conductor_server.store.part import StorePart
from rl_conductor_server.store.runs.retention import delete_some
from rl_conductor_server.store.tables import responses, stream_pieces
from rl_conductor_server.store.usage.stored_sizes import Growth, add_sizes, size_of

MAX_TURNS = 1_000
"""Maximum number of earlier responses in a conversation."""
StreamPiece = str | dict[str, Any]
"""A part of a streamed response: text of the answer, or a progress report."""


class StoredResponse(Value):
    """A response without its turn, which may be long."""

    run: str
    key: str
    """Name of the API key that may read it."""
    created: float
    """Seconds since 1970."""
    background: bool = False
    cancel_requested: bool = False
    parameters: Text
    """The request as JSON, without its input."""


class StoredTurn(Value):
    """The input of a response, and its output once there is one."""

    run: str
    previous: str | None = None
    """The run whose conversation it continues."""
    input: Text
    """The input as JSON, without the turns before it."""
    output: Text | None = None
    """The answer as a JSON array of items."""


RESPONSE_COLUMNS = [responses.c[name] for name in StoredResponse.model_fields]
TURN_COLUMNS = [responses.c[name] for name in StoredTurn.model_fields]


class ResponseStore(StorePart):
    """Requests and answers. A response has the id of its run; both are deleted after `retain_days`."""

    def add(self, response: StoredResponse, turn: StoredTurn) -> None:
        """Stores a request, unless an earlier attempt at it is stored."""
        values = response.model_dump() | turn.model_dump()
        insert = self._insert(responses).values(values).on_conflict_do_nothing(index_elements=["run"])
        size = size_of(response.parameters) + size_of(turn.input)

        def write(connection: Connection) -> None:
            if connection.execute(insert.returning(responses.c.run)).first() is not None:
                add_sizes(connection, [Growth(response.key, response.created, size)])

        self._write_queue.add(write)

    def set_output(self, connection: Connection, run: str, output: str) -> None:
        """Stores the answer of a response that was not deleted meanwhile."""
        _change(connection, run, update(responses).where(responses.c.run == run).values(output=output))

    def redact(self, run: str, *, parameters: str, input: str) -> None:  # noqa: A002  the column's name
        """Replaces the request of a response."""
        statement = update(responses).where(responses.c.run == run).values(parameters=parameters, input=input)
        self._write_queue.add(lambda connection: _change(connection, run, statement))

    def discard(self, run: str) -> None:
        """Deletes a response, but not its run."""
        statement = delete(responses).where(responses.c.run == run)
        self._write_queue.add(lambda connection: _change(connection, run, statement))

    def add_pieces(self, run: str, position: int, pieces: Sequence[StreamPiece], *, replaces_earlier: bool) -> None:
        """Stores the pieces that a stream has sent, after `position` earlier ones.

        With `replaces_earlier`, the pieces of an earlier attempt at the run are deleted.
        """
        body = json.dumps(pieces)
        row = {"run": run, "position": position, "body": body}
        find = select(responses.c.key, responses.c.created).where(responses.c.run == run)

        def write(connection: Connection) -> None:
            response = connection.execute(find).first()
            if response is None:
                return
            size = size_of(body)
            if replaces_earlier:
                size -= _measure_pieces(connection, run)
                connection.execute(delete(stream_pieces).where(stream_pieces.c.run == run))
            connection.execute(insert(stream_pieces), row)
            add_sizes(connection, [Growth(response.key, response.created, size)])

        self._write_queue.add(write)

    async def list_pieces(self, run: str, *, after: int) -> list[StreamPiece]:
        """Returns the pieces that a stream has sent, but for the first `after`."""
        query = select(stream_pieces.c.body).where(stream_pieces.c.run == run, stream_pieces.c.position >= after)
        rows = (await self._read(query.order_by(stream_pieces.c.position))).scalars()
        return [piece for body in rows for piece in json.loads(body)]

    async def get(self, run: str, *, key: str) -> StoredResponse | None:
        """Returns a response if it belongs to this API key."""
        query = select(*RESPONSE_COLUMNS).where(responses.c.run == run, responses.c.key == key)
        row = (await self._read(query)).mappings().first()
        return None if row is None else StoredResponse.model_validate(row)

    async def measure(self, run: str, *, key: str) -> int:
        """Returns the bytes of a response without its turn; 0 if there is none."""
        query = select(self._octets(responses.c.parameters)).where(responses.c.run == run, responses.c.key == key)
        return (await self._read(query)).scalar() or 0

    async def measure_turns(self, run: str, *, key: str) -> Sequence[tuple[str, int]]:
        """Returns the run and the bytes of the turn of each response of a chain, newest first."""
        chain = _chain(run, key)
        query = select(responses.c.run, self._turn_size.label("size")).join(chain, chain.c.run == responses.c.run)
        rows = await self._read(query.order_by(chain.c.age))
        return [(row["run"], int(row["size"])) for row in rows.mappings()]

    async def get_turns(self, run: str, *, key: str, limit: int = MAX_TURNS) -> Sequence[StoredTurn]:
        """Returns the newest turns of a chain of an API key that ends with a response, oldest first.

        It begins with a response that has a `previous` one if that one was deleted, or there are more than `limit`.
        It is empty if the last response doesn't exist.
        """
        chain = _chain(run, key)
        query = select(*TURN_COLUMNS).join(chain, chain.c.run == responses.c.run).where(chain.c.age < limit)
        rows = (await self._reader.execute(query.order_by(chain.c.age.desc()))).mappings().all()
        return [StoredTurn.model_validate(row) for row in rows]

    async def measure_all(self, run_ids: Collection[str], *, key: str) -> int:
        """Returns the bytes of the turns of those responses that belong to this API key."""
        query = select(func.sum(self._turn_size)).where(responses.c.run.in_(run_ids), responses.c.key == key)
        return int((await self._read(query)).scalar_one() or 0)

    async def get_all(self, run_ids: Collection[str], *, key: str) -> Sequence[StoredTurn]:
        """Returns the turns of those responses that belong to this API key."""
        query = select(*TURN_COLUMNS).where(responses.c.run.in_(run_ids), responses.c.key == key)
        rows = (await self._reader.execute(query)).mappings().all()
        return [StoredTurn.model_validate(row) for row in rows]

    @property
    def _turn_size(self) -> ColumnElement[int]:
        return self._octets(responses.c.input) + self._octets(responses.c.output)

    def _octets(self, column: ColumnElement[Any]) -> ColumnElement[int]:
        return count_octets(column, dialect=self._reader.dialect)

    async def is_background(self, run: str, *, key: str) -> bool | None:
        """Returns whether the response of an API key is in the background; `None` if there is none."""
        query = select(responses.c.background).where(responses.c.run == run, responses.c.key == key)
        is_background: bool | None = (await self._read(query)).scalar_one_or_none()
        return is_background

    async def request_cancel(self, run: str) -> None:
        """Asks the process that runs a response in the background to cancel it."""
        statement = update(responses).where(responses.c.run == run).values(cancel_requested=True)
        await self._write_queue.execute(lambda connection: connection.execute(statement).close())

    async def list_cancelled(self, active_runs: Collection[str]) -> Sequence[str]:
        """Returns those of `active_runs` that somebody asked to cancel."""
        if not active_runs:
            return []
        query = select(responses.c.run).where(responses.c.run.in_(active_runs), responses.c.cancel_requested)
        return (await self._reader.execute(query)).scalars().all()

    async def delete(self, run: str, *, key: str) -> bool:
        """Deletes a response with the content of its run, and of the runs that compared its answer or replayed it.

        Usage and audit records stay, and the idempotency key, with which the request is answered again. `False` if
        there is no such response.
        """
        is_own = responses.c.run == run, responses.c.key == key

        def erase(connection: Connection) -> bool:
            if connection.execute(select(responses.c.run).where(*is_own)).first() is None:
                return False
            erase_content(connection, [run, *find_internal_copies(connection, run)])
            return True

        return await self._write_queue.execute(erase)

    def delete_old(self, connection: Connection, *, before: float) -> int:
        """Deletes some responses from before a time, see `delete_some`."""
        return delete_some(connection, responses, responses.c.created < before)


def _change(connection: Connection, run: str, statement: Executable) -> None:
    """Executes a statement that changes the size of one response."""
    before = _measure(connection, run)
    connection.execute(statement)
    add_sizes(connection, [*(-growth for growth in before), *_measure(connection, run)])


def _measure(connection: Connection, run: str) -> list[Growth]:
    """Returns the size of a response without its stream, or nothing if there is none."""
    octets = partial(count_octets, dialect=connection.dialect.name)
    size = octets(responses.c.parameters) + octets(responses.c.input) + octets(responses.c.output)
    query = select(responses.c.key, responses.c.created, size).where(responses.c.run == run)
    return [Growth(*row) for row in connection.execute(query)]


def _measure_pieces(connection: Connection, run: str) -> int:
    octets = func.sum(count_octets(stream_pieces.c.body, dialect=connection.dialect.name))
    return int(connection.execute(select(octets).where(stream_pieces.c.run == run)).scalar() or 0)


def _chain(run: str, key: str) -> CTE:
    """Builds the table of a response and the ones before it, with their `age` in turns."""
    is_own = responses.c.key == key
    last = select(responses.c.run, responses.c.previous, literal(0).label("age")).where(responses.c.run == run, is_own)
    chain = last.cte("chain", recursive=True)
    earlier = select(responses.c.run, responses.c.previous, chain.c.age + 1)
    earlier = earlier.join(chain, responses.c.run == chain.c.previous).where(is_own, chain.c.age < MAX_TURNS - 1)
    return chain.union_all(earlier)
