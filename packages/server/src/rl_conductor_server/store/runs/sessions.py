"""Lists sessions: the runs of one conversation, and their usage together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, Select, func, or_, select

from rl_conductor_server.store.codec import usage_of
from rl_conductor_server.store.models import INTERNAL_APIS, Session
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.runs.queries import exact_sum, is_paid_by
from rl_conductor_server.store.tables import USAGE_COLUMNS, runs

RUNS_PER_SESSION = 8
"""Number of runs that are read at a time, for each session that is looked for."""

Name = tuple[str, str]
"""The API key and the name of a session."""


async def list_sessions(reader: StoreReader, limit: int, *, key: str | None, before: float | None) -> list[Session]:
    """Lists the sessions by the start of their newest run, latest first, or those before a time.

    Reads runs backwards until it has seen enough sessions, so that its time doesn't depend on the number of runs.
    """
    sessions: dict[Name, Session] = {}
    size, until = limit * RUNS_PER_SESSION, before
    while len(sessions) < limit:
        rows = (await reader.execute(_select_newest(size, key=key, before=until))).all()
        names = [name for name in dict.fromkeys((row.key, row.session) for row in rows) if name not in sessions]
        for session in await _read_sessions(reader, names):
            if before is None or session.last < before:
                sessions[session.key, session.session] = session
        if len(rows) < size:
            break
        until = rows[-1].created
    return sorted(sessions.values(), key=lambda session: (-session.last, session.key, session.session))[:limit]


def _select_newest(size: int, *, key: str | None, before: float | None) -> Select[Any]:
    """Selects the newest runs that continue a session; an index has all that it reads."""
    query = select(runs.c.key, runs.c.session, runs.c.created)
    query = query.where(runs.c.session.is_not(None), runs.c.api.not_in(INTERNAL_APIS))
    query = query.where(*is_paid_by(key))
    query = query if before is None else query.where(runs.c.created < before)
    return query.order_by(runs.c.created.desc()).limit(size)


async def _read_sessions(reader: StoreReader, names: Sequence[Name]) -> list[Session]:
    """Reads sessions with all of their runs."""
    if not names:
        return []
    sessions = sorted({session for _, session in names})
    name = func.coalesce(runs.c.session, runs.c.id).label("name")
    query = (
        select(
            runs.c.key,
            name,
            func.count().label("turns"),
            func.min(runs.c.created).label("first"),
            func.max(runs.c.created).label("last"),
            *(exact_sum(runs.c[column]).label(column) for column in USAGE_COLUMNS),
        )
        .where(or_(runs.c.session.in_(sessions), runs.c.id.in_(sessions)), runs.c.api.not_in(INTERNAL_APIS))
        .group_by(runs.c.key, name)
    )
    rows, pairs = (await reader.execute(query)).all(), set(names)
    return [_session(row) for row in rows if (row.key, row.name) in pairs]


def _session(row: Row[Any]) -> Session:
    return Session(key=row.key, session=row.name, turns=row.turns, first=row.first, last=row.last, usage=usage_of(row))
