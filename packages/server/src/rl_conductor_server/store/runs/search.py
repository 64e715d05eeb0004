"""Finds runs, by an index of the trigrams in their texts where that is faster.

The index finds the few runs that have a rare text; reading all runs, the newest first, soon finds enough that have a
frequent one. SQLite's index is fast in counting the runs that have all trigrams of a text. That of Postgres may read
all runs with these trigrams, so the newest runs are read before it is used, and it gets little time. A Postgres without
the module `pg_trgm` has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Result,
    Row,
    Select,
    SelectBase,
    func,
    literal_column,
    select,
    union_all,
)
from sqlalchemy import Text as SqlText
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from rl_conductor_server.store.column_types import sanitize
from rl_conductor_server.store.models import Search
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.runs.queries import select_runs, select_runs_among, time_conditions
from rl_conductor_server.store.tables import (
    HAS_ENDED,
    IS_RUNNING,
    indexed_runs,
    run_trigrams,
    runs,
    unindexed_runs,
)

SEARCHED_TEXT: ColumnElement[str] = literal_column("(question || chr(10) || coalesce(answer, ''))", SqlText)
"""The expression that the index of Postgres has, see `migrations.text_index`."""
MAX_CANDIDATES = 4_000
"""Maximum number of runs that are read because the index has them. A text of more runs is found as fast without it:
among a million, 50 of them are in the newest 12,500 on average."""
MAX_TRIGRAMS = 50
"""Maximum number of trigrams that are looked up in SQLite."""
MIN_CHARS = 3
"""Shorter texts have no trigram."""
NEWEST_RUNS = 2_000
"""Number of runs that are read before the index of Postgres is used."""
POSTGRES_MILLISECONDS = 40
"""Maximum time of a query that uses the index of Postgres."""
QUERY_CANCELED = "57014"
"""The `SQLSTATE` of a query that takes more time."""

_limit_time = select(
    func.to_regclass("runs_by_text").is_not(None),
    func.set_config("statement_timeout", str(POSTGRES_MILLISECONDS), literal_column("true")),
)
"""Returns whether Postgres has the index, and limits the time of the queries that follow in the transaction."""


async def find_runs(
    reader: StoreReader, search: Search, columns: Sequence[ColumnElement[Any]], *, limit: int
) -> Sequence[Row[Any]]:
    """Returns columns of the runs that match, newest first."""
    rows = None
    if len(text := sanitize(search.text or "")) >= MIN_CHARS:
        if reader.dialect != "sqlite":
            rows = await _find_among_newest(reader, search, columns, limit)
        if rows is None:
            rows = await _find_by_index(reader, text, search, columns, limit)
    if rows is None:
        rows = (await reader.execute(select_runs(search, columns, limit=limit))).all()
    return rows


async def _find_among_newest(
    reader: StoreReader, search: Search, columns: Sequence[ColumnElement[Any]], limit: int
) -> Sequence[Row[Any]] | None:
    """Returns the runs that match if enough of the newest ones do."""
    times = select(runs.c.created).where(*time_conditions(search, runs.c.created))
    last = times.order_by(runs.c.created.desc()).offset(NEWEST_RUNS).limit(1)
    since = (await reader.execute(last)).scalar()
    newest = search.model_copy(update={"since": since or search.since})
    rows = (await reader.execute(select_runs(newest, columns, limit=limit))).all()
    return rows if since is None or len(rows) == limit else None


async def _find_by_index(
    reader: StoreReader, text: str, search: Search, columns: Sequence[ColumnElement[Any]], limit: int
) -> Sequence[Row[Any]] | None:
    """Returns the runs that match if the index has few candidates."""
    is_sqlite = reader.dialect == "sqlite"
    candidates = _candidates_in_sqlite(text) if is_sqlite else _candidates_in_postgres(text)
    count = select(func.count()).select_from(candidates.limit(MAX_CANDIDATES + 1).subquery())
    query = select_runs_among(candidates, search, columns, limit=limit)
    rows = await (_find_in_sqlite if is_sqlite else _find_in_postgres)(reader, count, query)
    return None if rows is None else rows.all()


async def _find_in_sqlite(reader: StoreReader, count: Select[Any], query: Select[Any]) -> Result[Any] | None:
    """Returns the result of `query`, unless the index has too many runs."""
    is_rare = (await reader.execute(count)).scalar_one() <= MAX_CANDIDATES
    return await reader.execute(query) if is_rare else None


async def _find_in_postgres(reader: StoreReader, count: Select[Any], query: Select[Any]) -> Result[Any] | None:
    """Returns the result of `query`, unless the index has too many runs, takes long, or is missing."""

    async def find(connection: AsyncConnection) -> Result[Any] | None:
        has_index = (await connection.execute(_limit_time)).one()[0]
        if not has_index or (await connection.execute(count)).scalar_one() > MAX_CANDIDATES:
            return None
        rows: Result[Any] = (await connection.execute(query)).freeze()()
        return rows

    try:
        return await reader.run(find)
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != QUERY_CANCELED:
            raise
        return None


def _candidates_in_sqlite(text: str) -> CompoundSelect[Any]:
    """Selects the ids of the runs that may have a text: those that the index finds, and those that it lacks."""
    indexed = select(indexed_runs.c.run).join(run_trigrams, run_trigrams.c.rowid == indexed_runs.c.number)
    indexed = indexed.where(run_trigrams.c.run_trigrams.match(_trigrams_of(text)))
    return _with_running(indexed, select(unindexed_runs.c.run))


def _candidates_in_postgres(text: str) -> CompoundSelect[Any]:
    """Selects the ids of the runs that may have a text, by the expression that the index has."""
    indexed = select(runs.c.id).where(HAS_ENDED, SEARCHED_TEXT.icontains(text, autoescape=True))
    return _with_running(indexed)


def _with_running(*selected: SelectBase) -> CompoundSelect[Any]:
    return union_all(*selected, select(runs.c.id).where(IS_RUNNING))


def _trigrams_of(text: str) -> str:
    """Returns FTS5's expression for the trigrams of a text, as quoted strings."""
    trigrams = list(dict.fromkeys(text[start : start + 3] for start in range(len(text) - 2)))
    return " ".join('"' + trigram.replace('"', '""') + '"' for trigram in trigrams[:MAX_TRIGRAMS])
