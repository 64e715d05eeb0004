"""Leases on runs: a process renews its leases while it lives; once they expire, another process may take its runs over.

A run with an idempotency key is taken over when its request is sent again. Whether it has a key or not, a run whose
lease has expired is ended as failed, so that it is charged and gets its audit record.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, and_, not_, select, update

from rl_conductor.calls.budget import Amount
from rl_conductor.trace.audit import Ended, unfinished_record_of
from rl_conductor.trace.trace import Round, Trace
from rl_conductor.types import Usage
from rl_conductor_server.store.audit_records import RecordFactory, append_records
from rl_conductor_server.store.codec import IncompatibleReleaseError, decode, decode_rounds
from rl_conductor_server.store.models import SERVER_GONE, Claim, NewRun
from rl_conductor_server.store.queries import select_steps
from rl_conductor_server.store.run_writer import worker_usage_rows
from rl_conductor_server.store.statements import Statements
from rl_conductor_server.store.tables import PLAN_POSITION, USAGE_COLUMNS, runs

END_BATCH_SIZE = 100
"""Maximum number of runs ended in one transaction, during which no other process can write."""
END_COLUMNS = ("seconds", "error", "trace", "answer")
"""Columns that are set only when a run has ended."""
EXPIRED_COLUMNS = ("id", "key", "idempotency", "api", "model", "owner", "created", "heartbeat", "question")


@dataclass(frozen=True)
class RunLeases:
    """Claims, renews and expires leases on behalf of one process."""

    statements: Statements
    owner: str
    seconds: float
    """How long a lease lasts after its last renewal."""

    # ----------------------------------------------------------------------------------------- claiming

    def claim(self, connection: Connection, run: NewRun, row: Mapping[str, Any]) -> Claim:
        """Insert `run` as `row`, or take over the earlier run of the same request unless its lease is still valid."""
        if connection.execute(self.statements.claim_run, row).first() is not None:
            return Claim(id=run.id, created=run.created, outcome="new")
        same_request = and_(runs.c.key == run.key, runs.c.idempotency == run.idempotency, runs.c.choice == run.choice)
        return self._claim_existing(connection, run, connection.execute(select(runs).where(same_request)).one())

    def _claim_existing(self, connection: Connection, run: NewRun, row: Row[Any]) -> Claim:
        claim = Claim(id=row.id, created=row.created, outcome="elsewhere")
        if (row.id, row.owner, row.created) == (run.id, self.owner, run.created):
            # An earlier attempt at this write was committed, but the database's confirmation was lost.
            return claim.model_copy(update={"outcome": "new"})
        if row.digest != run.digest:
            return claim.model_copy(update={"outcome": "mismatch"})
        if row.status == "done":
            trace = decode(Trace, row.trace, run=row.id)
            return claim.model_copy(update={"outcome": "done", "trace": trace})
        if not self._take_over(connection, row):
            return claim
        progress = {
            "rounds": self._restore_rounds(connection, row),
            "charged": Amount(row.charged_usd, row.charged_tokens),
            "inherited": row.owner != self.owner,
        }
        return claim.model_copy(update={"outcome": "resumed"} | progress)

    def _take_over(self, connection: Connection, row: Row[Any]) -> bool:
        if row.status == "running" and row.heartbeat >= time.time() - self.seconds:
            return False
        unchanged = and_(runs.c.id == row.id, runs.c.owner == row.owner, runs.c.heartbeat == row.heartbeat)
        values = {"owner": self.owner, "heartbeat": time.time(), "status": "running"} | dict.fromkeys(END_COLUMNS)
        updated = connection.execute(update(runs).where(unchanged).values(values).returning(runs.c.id))
        return updated.first() is not None

    def _restore_rounds(self, connection: Connection, row: Row[Any]) -> tuple[Round, ...]:
        """Return the rounds of a run that was taken over.

        If the run had ended, its rounds are in its trace, which is deleted now: store them as steps again.
        """
        if row.trace is None:
            return decode_rounds(connection.execute(select_steps(row.id)), run=row.id)
        rounds = decode(Trace, row.trace, run=row.id).rounds
        steps = [
            {"run": row.id, "round": number, "position": position, "body": body.model_dump_json()}
            for number, one_round in enumerate(rounds)
            for position, body in (
                (PLAN_POSITION, one_round.plan),
                *((result.index, result) for result in one_round.results),
            )
        ]
        if steps:
            connection.execute(self.statements.upsert_step, steps)
        return rounds

    # ----------------------------------------------------------------------------------------- renewing

    def renew(self, connection: Connection, active_runs: Sequence[str]) -> None:
        """Renew the leases of those `active_runs` that are still this process's."""
        values = {"active_runs": active_runs, "by_owner": self.owner, "now": time.time()}
        connection.execute(self.statements.renew_leases, values)

    # ----------------------------------------------------------------------------------------- expiring

    def end_expired(self, connection: Connection, active_runs: Sequence[str]) -> list[str]:
        """End up to `END_BATCH_SIZE` runs with an expired lease as failed, except this process's own `active_runs`.

        Returns:
            The ids of the runs that were ended.
        """
        is_expired = and_(runs.c.status == "running", runs.c.heartbeat < time.time() - self.seconds)
        is_active = and_(runs.c.owner == self.owner, runs.c.id.in_(active_runs))
        columns = [runs.c[name] for name in (*EXPIRED_COLUMNS, *USAGE_COLUMNS)]
        oldest = select(*columns).where(is_expired, not_(is_active)).order_by(runs.c.heartbeat).limit(END_BATCH_SIZE)
        rows = connection.execute(oldest).all()
        if rows:
            self._end_runs(connection, rows)
        return [row.id for row in rows]

    def _end_runs(self, connection: Connection, rows: Sequence[Row[Any]]) -> None:
        rounds_by_run = {row.id: _readable_rounds(connection, row.id) for row in rows}
        connection.execute(self.statements.update_run, [self._failed_values(row) for row in rows])
        # Earlier releases stored the steps of runs with `store: false`, too.
        if without_content := [{"of_run": row.id} for row in rows if row.idempotency is None and not row.question]:
            connection.execute(self.statements.delete_steps, without_content)
        calls_by_run = {run: [call for each in rounds for call in each.calls] for run, rounds in rounds_by_run.items()}
        if usage_rows := [usage for run, calls in calls_by_run.items() for usage in worker_usage_rows(run, calls)]:
            connection.execute(self.statements.upsert_worker_usage, usage_rows)
        append_records(connection, [_audit_record(row, rounds_by_run[row.id]) for row in rows])

    def _failed_values(self, row: Row[Any]) -> dict[str, Any]:
        hint = "" if row.idempotency is None else "; send the request with its Idempotency-Key again to continue it"
        return {
            "by_id": row.id,
            "by_owner": row.owner,
            "status": "failed",
            "seconds": _seconds_until_heartbeat(row),
            "error": f"{SERVER_GONE}: no sign of life for {self.seconds:g} s{hint}",
        }


def _readable_rounds(connection: Connection, run: str) -> tuple[Round, ...]:
    try:
        return decode_rounds(connection.execute(select_steps(run)), run=run)
    except IncompatibleReleaseError:  # the run must end all the same
        return ()


def _audit_record(row: Row[Any], rounds: Sequence[Round]) -> RecordFactory:
    ended = Ended(run=row.id, key=row.key, api=row.api, model=row.model, status="failed", trace=None)
    return partial(
        unfinished_record_of,
        rounds,
        ended,
        began=datetime.fromtimestamp(row.created, UTC),
        seconds=_seconds_until_heartbeat(row),
        usage=Usage(**{name: getattr(row, name) for name in USAGE_COLUMNS}),
    )


def _seconds_until_heartbeat(row: Row[Any]) -> float:
    return max(0.0, float(row.heartbeat - row.created))
