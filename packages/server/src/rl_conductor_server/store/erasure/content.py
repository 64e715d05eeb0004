"""Erases the content of runs and the fields that their clients chose, and keeps their rows with usage and cost."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from sqlalchemy import Connection, case, delete, select, union_all, update

from rl_conductor_server.store.dialects import count_octets
from rl_conductor_server.store.erasure.conversations import delete_items
from rl_conductor_server.store.models import INTERNAL_APIS
from rl_conductor_server.store.tables import feedback, pairs, responses, runs, steps, stream_pieces, users
from rl_conductor_server.store.usage.stored_sizes import Growth, add_sizes

ERASED_ERROR = "the run failed; its error was deleted with its content"
"""Replaces an error, which may quote the conversation."""
IDENTITY: dict[str, Any] = {
    "labels": case((runs.c.api.in_(INTERNAL_APIS), runs.c.labels), else_="{}"),  # these have only ids of other runs
    "idempotency_key": None,
    "digest": "",
    "cache_digest": None,
    "session": None,
}
"""Columns that the client has chosen, or that are computed from the request, with their values after the erasure."""


def erase_all(connection: Connection, run_ids: Collection[str]) -> list[str]:
    """Erases the content of runs, their feedback and the fields chosen by clients; returns their conversations."""
    conversations = delete_items(connection, run_ids)
    erase_content(connection, run_ids)
    connection.execute(update(runs).where(runs.c.id.in_(run_ids)).values(IDENTITY))
    for table in (users, feedback):
        connection.execute(delete(table).where(table.c.run.in_(run_ids)))
    return conversations


def erase_content(connection: Connection, run_ids: Collection[str]) -> None:
    """Erases questions, plans, replies, answers and errors, those of stored responses included."""
    add_sizes(connection, [-growth for growth in _measure(connection, run_ids)])
    for table in (steps, responses):
        connection.execute(delete(table).where(table.c.run.in_(run_ids)))
    error = case((runs.c.error.is_not(None), ERASED_ERROR))
    erased = {"trace": None, "question": "", "answer": None, "error": error}
    connection.execute(update(runs).where(runs.c.id.in_(run_ids)).values(erased))
    erase_reasons(connection, run_ids)


def erase_reasons(connection: Connection, run_ids: Collection[str]) -> None:
    """Erases the reasons of judges that compared the answers of runs."""
    connection.execute(update(pairs).where(pairs.c.run.in_(run_ids)).values(reason=""))


def _measure(connection: Connection, run_ids: Collection[str]) -> list[Growth]:
    """Returns the sizes of traces, responses and their streams."""
    octets = partial(count_octets, dialect=connection.dialect.name)
    turn = octets(responses.c.parameters) + octets(responses.c.input) + octets(responses.c.output)
    traces = select(runs.c.key, runs.c.created, octets(runs.c.trace)).where(runs.c.id.in_(run_ids))
    turns = select(responses.c.key, responses.c.created, turn).where(responses.c.run.in_(run_ids))
    pieces = select(responses.c.key, responses.c.created, octets(stream_pieces.c.body)).join(stream_pieces)
    rows = connection.execute(union_all(traces, turns, pieces.where(responses.c.run.in_(run_ids))))
    return [Growth(*row) for row in rows]
