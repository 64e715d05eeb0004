"""`ErasureStore`: erases single runs, or those of one user, in all tables and in SQLite's files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Row, Select, func, select

from rl_conductor_server.store.audit import erasure_record_of
from rl_conductor_server.store.batches.models import Place
from rl_conductor_server.store.erasure.batch_lines import erase_lines, open_places, place_of
from rl_conductor_server.store.erasure.content import erase_all, erase_content, erase_reasons
from rl_conductor_server.store.erasure.conversations import delete_conversations
from rl_conductor_server.store.erasure.copies import find_copies, find_internal_copies
from rl_conductor_server.store.erasure.remnants import empty_log, merge_index
from rl_conductor_server.store.models import COMPARISON_APIS, INTERNAL_APIS
from rl_conductor_server.store.part import StorePart
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.runs.audit_records import append_records
from rl_conductor_server.store.runs.queries import is_paid_by
from rl_conductor_server.store.tables import audit_records, runs, users
from rl_conductor_server.store.write_behind import WriteBehindQueue

ERASE_BATCH_SIZE = 50
"""Maximum number of runs, without their copies, erased in one transaction, during which no other process can write."""
Outcome = Literal["erased", "in progress", "not found"]


class ErasedRuns(NamedTuple):
    """The result of the erasure of a user."""

    erased: int
    """Number of runs that were erased, without comparisons and replays."""
    in_progress: int
    """Number of runs that were not erased, because they have not ended, or a replay or their batch has not."""


class _Erasure(NamedTuple):
    """The runs of one transaction, without comparisons and replays."""

    erased: set[str]
    in_progress: set[str]


class ErasureStore(StorePart):
    """Erases the content and the users of runs in all tables; usage, times, names of models and audit records stay.

    `by` says who erases, for the audit record. `merge_index` has to be called some time later.
    """

    def __init__(self, reader: StoreReader, write_queue: WriteBehindQueue) -> None:
        super().__init__(reader, write_queue)
        self._must_merge = False

    async def erase_run(self, run: str, *, by: str, key: str | None = None) -> Outcome:
        """Erases a run and its copies; with `key`, only if that API key paid for it."""
        query = select(runs.c.id).where(runs.c.id == run, *is_paid_by(key))
        if (await self._read(query)).first() is None:
            return "not found"
        result = await self._erase([run], by=by)
        await self._clear_log()
        return "in progress" if result.in_progress else "erased"

    async def erase_user(self, user: str, *, by: str, key: str | None = None) -> ErasedRuns:
        """Erases the runs of a user and their conversations; with `key`, only those that the API key paid for.

        The user is found as by `Search.user`. Conversations stay that have runs of other users, but without these runs.
        """
        erased, in_progress = 0, set[str]()
        while run_ids := await self._find_runs(user, key, except_runs=in_progress):
            result = await self._erase(run_ids, by=by, user=user)
            erased += len(result.erased)
            in_progress |= result.in_progress
        await self._clear_log()
        return ErasedRuns(erased, len(in_progress))

    async def count_runs(self, user: str, *, key: str | None = None) -> dict[str, int]:
        """Returns the number of runs of a user by API key."""
        query = _select_runs(user, key, runs.c.key, func.count().label("number")).group_by(runs.c.key)
        return {row.key: row.number for row in await self._read(query.order_by(runs.c.key))}

    async def erase_comparison(self, run: str) -> None:
        """Erases the content of runs that compared an answer, if it was erased while they ran."""
        query = select(runs.c.id).where(runs.c.id == run, runs.c.trace.is_(None))
        if (await self._read(query)).first() is None:
            return

        def erase(connection: Connection) -> None:
            erase_content(connection, find_internal_copies(connection, run))
            erase_reasons(connection, [run])

        await self._write_queue.execute(erase)

    async def merge_index(self) -> None:
        """Removes the entries of runs that this process has erased from SQLite's index of texts."""
        if self._must_merge:
            self._must_merge = False
            await merge_index(self._write_queue)
            await empty_log(self._reader)

    async def _clear_log(self) -> None:
        if self._reader.dialect == "sqlite":
            self._must_merge = True
            await empty_log(self._reader)

    async def _find_runs(self, user: str, key: str | None, *, except_runs: Collection[str]) -> Sequence[str]:
        query = _select_runs(user, key, runs.c.id).where(runs.c.id.not_in(except_runs)).limit(ERASE_BATCH_SIZE)
        return (await self._read(query)).scalars().all()

    async def _erase(self, run_ids: Sequence[str], *, by: str, user: str | None = None) -> _Erasure:
        return await self._write_queue.execute(partial(_erase_runs, run_ids=run_ids, by=by, user=user))


def _select_runs(user: str, key: str | None, *columns: Any) -> Select[Any]:
    query = select(*columns).select_from(runs).join(users, users.c.run == runs.c.id)
    return query.where(users.c.name == user.lower(), *is_paid_by(key))


def _erase_runs(connection: Connection, *, run_ids: Collection[str], by: str, user: str | None) -> _Erasure:
    """Erases the runs, and their copies, of which none is in progress."""
    origins = find_copies(connection, run_ids)
    columns = [runs.c[name] for name in ("id", "key", "api", "status", "session", "idempotency_key")]
    rows = connection.execute(select(*columns).where(runs.c.id.in_(origins))).all()
    places = {row.id: place for row in rows if (place := place_of(row.idempotency_key))}
    unfinished = open_places(connection, set(places.values()))
    in_progress = {origins[row.id] for row in rows if _is_in_progress(row, places.get(row.id), unfinished)}
    ended = [row for row in rows if origins[row.id] not in in_progress]
    if ended:
        _erase_everywhere(connection, ended, places, user)
        _record(connection, [row.id for row in ended], by)
    return _Erasure({row.id for row in ended if row.api not in INTERNAL_APIS}, in_progress)


def _is_in_progress(row: Row[Any], place: Place | None, unfinished: Collection[Place]) -> bool:
    """Returns whether something is still to be stored; `ErasureStore.erase_comparison` erases that of comparisons."""
    return (row.status == "running" and row.api not in COMPARISON_APIS) or place in unfinished


def _erase_everywhere(
    connection: Connection, rows: Sequence[Row[Any]], places: dict[str, Place], user: str | None
) -> None:
    conversations = erase_all(connection, [row.id for row in rows])
    for key in {row.key for row in rows}:
        of_key = [places[row.id] for row in rows if row.key == key and row.id in places]
        erase_lines(connection, of_key, key=key)
    if user is not None:
        delete_conversations(connection, conversations, user=user)


def _record(connection: Connection, run_ids: Sequence[str], by: str) -> None:
    """Adds audit records, but for runs that were erased before."""
    is_erasure = audit_records.c.run.in_(run_ids), audit_records.c.line.contains('"event":"erasure"')
    recorded = set(connection.execute(select(audit_records.c.run).where(*is_erasure)).scalars())
    at = datetime.now(UTC)
    append_records(
        connection, [partial(erasure_record_of, run, by=by, at=at) for run in run_ids if run not in recorded]
    )
