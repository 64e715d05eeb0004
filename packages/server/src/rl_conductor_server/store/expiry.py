"""Ends the runs that a process left behind when it died: nobody else would charge them or put them on record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, not_, select

from rl_conductor.trace.audit import Ended, unfinished_record_of
from rl_conductor.trace.trace import Round
from rl_conductor.types import Usage
from rl_conductor_server.store.audit import MakeRecord, append
from rl_conductor_server.store.claims import rounds_in, steps_of
from rl_conductor_server.store.codec import OtherReleaseError
from rl_conductor_server.store.models import SERVER_GONE
from rl_conductor_server.store.prepared import Statements
from rl_conductor_server.store.queries import AMOUNTS
from rl_conductor_server.store.tables import runs
from rl_conductor_server.store.writer import share_rows

AT_ONCE = 100
"""Most runs that are ended in one transaction: others wait for it."""
NAMES = ("id", "key", "idempotency", "api", "model", "owner", "created", "heartbeat", "question")


@dataclass(frozen=True)
class Expiry:
    """Ends runs whose lease has expired, for one of the processes that share the store."""

    statements: Statements
    owner: str
    lease: float

    def expire(self, connection: Connection, living: Sequence[str]) -> list[str]:
        """End some of them as failed, but none of this process's `living`; their ids."""
        columns = [runs.c[name] for name in (*NAMES, *AMOUNTS)]
        oldest = select(*columns).where(self._is_expired(living)).order_by(runs.c.heartbeat).limit(AT_ONCE)
        rows = connection.execute(oldest).all()
        if rows:
            self._end(connection, rows)
        return [row.id for row in rows]

    def _is_expired(self, living: Sequence[str]) -> ColumnElement[bool]:
        is_silent = and_(runs.c.status == "running", runs.c.heartbeat < time.time() - self.lease)
        return and_(is_silent, not_(and_(runs.c.owner == self.owner, runs.c.id.in_(living))))

    def _end(self, connection: Connection, rows: Sequence[Row[Any]]) -> None:
        done = {row.id: _rounds(connection, row.id) for row in rows}
        connection.execute(self.statements.change, [self._values(row) for row in rows])
        # Earlier releases stored the steps of runs with `store: false`, too.
        if unwanted := [{"over": row.id} for row in rows if row.idempotency is None and not row.question]:
            connection.execute(self.statements.forget, unwanted)
        calls = {run: [call for one in rounds for call in one.calls] for run, rounds in done.items()}
        if used := [share for run, made in calls.items() for share in share_rows(run, made)]:
            connection.execute(self.statements.share, used)
        append(connection, [_record(row, done[row.id]) for row in rows])

    def _values(self, row: Row[Any]) -> dict[str, Any]:
        cure = "" if row.idempotency is None else "; send the request with its Idempotency-Key again to continue it"
        return {
            "its_id": row.id,
            "its_owner": row.owner,
            "status": "failed",
            "seconds": _seconds(row),
            "error": f"{SERVER_GONE}: no sign of life for {self.lease:g} s{cure}",
        }


def _rounds(connection: Connection, run: str) -> tuple[Round, ...]:
    try:
        return rounds_in(connection.execute(steps_of(run)), run=run)
    except OtherReleaseError:
        return ()


def _record(row: Row[Any], rounds: Sequence[Round]) -> MakeRecord:
    ended = Ended(run=row.id, key=row.key, api=row.api, model=row.model, status="failed", trace=None)
    return partial(
        unfinished_record_of,
        rounds,
        ended,
        began=datetime.fromtimestamp(row.created, UTC),
        seconds=_seconds(row),
        usage=Usage(**{name: getattr(row, name) for name in AMOUNTS}),
    )


def _seconds(row: Row[Any]) -> float:
    return max(0.0, float(row.heartbeat - row.created))
