"""Stores feedback on runs; each change gets an audit record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, func, select

from rl_conductor.trace.feedback import Feedback
from rl_conductor_server.store.audit import feedback_record_of
from rl_conductor_server.store.part import StorePart
from rl_conductor_server.store.runs.audit_records import append_records
from rl_conductor_server.store.tables import audit_records, feedback, runs

MAX_KEYS = 20
"""Maximum number of criteria by which one author can rate a run."""


class FeedbackStore(StorePart):
    """The feedback on runs."""

    async def put(self, run: str, entry: Feedback) -> Feedback | None:
        """Adds feedback, or replaces the earlier one of the same author and key.

        Returns:
            What is stored now: if nothing but the time differs, the earlier feedback. `None` if the run was deleted,
            or the author has rated it by `MAX_KEYS` other criteria.
        """
        return await self._write_queue.execute(lambda connection: self._put(connection, run, entry))

    def _put(self, connection: Connection, run: str, entry: Feedback) -> Feedback | None:
        of_author = and_(feedback.c.run == run, feedback.c.author == entry.author)
        same_key = select(feedback).where(of_author, feedback.c.key == entry.key)
        row = connection.execute(same_key).mappings().first()
        earlier = None if row is None else _from_row(row)
        if earlier is not None and earlier.model_copy(update={"updated": entry.updated}) == entry:
            return earlier
        is_stored = connection.execute(select(runs.c.id).where(runs.c.id == run)).first() is not None
        keys = connection.execute(select(func.count()).select_from(feedback).where(of_author)).scalar_one()
        if not is_stored or (earlier is None and keys >= MAX_KEYS):
            return None
        values = entry.model_dump() | {"run": run, "updated": entry.updated.timestamp()}
        connection.execute(
            self._insert(feedback)
            .values(values)
            .on_conflict_do_update(
                index_elements=list(feedback.primary_key),
                set_={name: values[name] for name in ("score", "comment", "updated")},
            )
        )
        append_records(connection, [partial(feedback_record_of, run, entry)])
        return entry

    async def count_changes(self, run: str) -> int:
        """Returns the number of audit records of a run; each change of its feedback has one."""
        query = select(func.count()).select_from(audit_records).where(audit_records.c.run == run)
        return int((await self._read(query)).scalar_one())

    async def list(self, run: str) -> Sequence[Feedback]:
        """Lists the feedback on a run, oldest first."""
        query = select(feedback).where(feedback.c.run == run).order_by(feedback.c.updated, *feedback.primary_key)
        return [_from_row(row) for row in (await self._read(query)).mappings()]


def _from_row(row: RowMapping) -> Feedback:
    values: dict[str, Any] = {name: row[name] for name in ("author", "key", "score", "comment")}
    return Feedback(**values, updated=datetime.fromtimestamp(row["updated"], UTC))
