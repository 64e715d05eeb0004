"""Leases on runs: a process renews its leases while it lives; once they expire, another process may take its runs over.

A run with an idempotency key is taken over when its request is sent again. Whether it has a key or not, a run whose
lease has expired is ended as failed, so that it is charged and gets its audit record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, false, not_, select, update

from rl_conductor.calls.budget import Amount
from rl_conductor.trace.trace import Round, Trace
from rl_conductor_server.store.audit import Ended, InFlight, unfinished_record_of
from rl_conductor_server.store.codec import IncompatibleReleaseError, decode, decode_rounds, usage_of
from rl_conductor_server.store.keys.budget_leases import BudgetLeases
from rl_conductor_server.store.models import SERVER_GONE, Claim, NewRun
from rl_conductor_server.store.runs.audit_records import RecordFactory, append_records
from rl_conductor_server.store.runs.idempotency import HAS_ANSWER, is_same_request
from rl_conductor_server.store.runs.queries import select_steps
from rl_conductor_server.store.runs.run_writer import charge_values, excerpt, user_rows, worker_usage_rows
from rl_conductor_server.store.statements import Statements
from rl_conductor_server.store.tables import CHARGE_COLUMNS, PLAN_POSITION, RESERVED_COLUMNS, USAGE_COLUMNS, runs
from rl_conductor_server.store.usage.daily_usage import reopen_days
from rl_conductor_server.store.usage.stored_sizes import Growth, add_sizes, size_of

END_BATCH_SIZE = 100
"""Maximum number of runs ended in one transaction, during which no other process can write."""
END_COLUMNS = ("seconds", "error", "error_code", "trace", "answer")
"""Columns that are set only when a run has ended."""
COLUMNS_BUT_TRACE = [column for column in runs.c if column is not runs.c.trace]
"""The trace may be long, and other writes wait while it is read."""
EXPIRED_COLUMNS = ("id", "key", "idempotency_key", "api", "model", "owner", "created", "heartbeat")


@dataclass(frozen=True)
class RunLeases:
    """Claims, renews and expires leases on behalf of one process."""

    statements: Statements
    budgets: BudgetLeases
    owner: str
    seconds: float
    """Duration of a lease after its last renewal, by the database's clock."""

    # ----------------------------------------------------------------------------------------- claiming

    def claim(
        self, connection: Connection, run: NewRun, row: Mapping[str, Any], *, may_take_over: bool = True
    ) -> Claim:
        """Inserts `run` as `row`, or takes over the earlier run of the same request if its lease has expired.

        Without `may_take_over`, leases may look expired although their processes live.
        """
        if connection.execute(self.statements.claim_run, row).first() is not None:
            if rows := user_rows(run):
                connection.execute(self.statements.insert_user, rows)
            return Claim(id=run.id, created=run.created, outcome="new")
        is_expired = self._is_expired if may_take_over else false()
        columns = [*COLUMNS_BUT_TRACE, HAS_ANSWER.label("has_answer"), is_expired.label("is_expired")]
        existing = connection.execute(select(*columns).where(is_same_request(run))).one()
        return self._claim_existing(connection, run, existing)

    def _claim_existing(self, connection: Connection, run: NewRun, row: Row[Any]) -> Claim:
        claim = Claim(id=row.id, created=row.created, outcome="elsewhere")
        if (row.id, row.owner, row.created) == (run.id, self.owner, run.created):
            # An earlier attempt at this write was committed, but the database's confirmation was lost.
            return claim.model_copy(update={"outcome": "new"})
        if row.digest != run.digest:
            return claim.model_copy(update={"outcome": "mismatch"})
        if row.has_answer:
            return claim.model_copy(update={"outcome": "done"})
        if row.status == "running" and not row.is_expired:
            return claim
        progress = {"rounds": self._take_over(connection, run, row), "charged": _charged_at_end(row)}
        return claim.model_copy(update={"outcome": "resumed"} | progress)

    def _take_over(self, connection: Connection, run: NewRun, row: Row[Any]) -> tuple[Round, ...]:
        """Makes this process the owner of a run that failed or lost its process, and returns its rounds.

        Its question is stored again, because it may have been deleted.
        """
        trace = connection.execute(select(runs.c.trace).where(runs.c.id == row.id)).scalar_one()
        if row.status == "running" and (row.reserved_usd or row.reserved_tokens):
            self._end_runs(connection, [row])  # the record shows that calls in flight were charged
        values: dict[str, Any] = {"owner": self.owner, "heartbeat": self.statements.now, "status": "running"}
        values |= dict.fromkeys(END_COLUMNS) | {"question": excerpt(run.question)}
        connection.execute(update(runs).where(runs.c.id == row.id).values(values))
        add_sizes(connection, [Growth(row.key, row.created, -size_of(trace))])
        return self._restore_rounds(connection, row.id, trace)

    @property
    def _is_expired(self) -> ColumnElement[bool]:
        return runs.c.heartbeat < self.statements.now - self.seconds

    def _restore_rounds(self, connection: Connection, run: str, trace: str | None) -> tuple[Round, ...]:
        """Returns the rounds of a run that was taken over.

        If the run had ended, its rounds are in its `trace`, which is deleted now: store them as steps again.
        """
        if trace is None:
            return decode_rounds(connection.execute(select_steps(run)), run=run)
        rounds = decode(Trace, trace, run=run).rounds
        steps = [
            {"run": run, "round": number, "position": position, "body": body.model_dump_json()}
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
        """Renews the leases of those `active_runs` that are still this process's."""
        if active_runs:
            values = {"active_runs": active_runs, "by_owner": self.owner}
            connection.execute(self.statements.renew_leases, values)

    # ----------------------------------------------------------------------------------------- expiring

    def end_expired(self, connection: Connection, active_runs: Sequence[str]) -> list[str]:
        """Ends up to `END_BATCH_SIZE` runs with an expired lease as failed, except this process's own `active_runs`.

        Returns:
            The ids of the runs that were ended.
        """
        is_expired = and_(runs.c.status == "running", self._is_expired)
        is_active = and_(runs.c.owner == self.owner, runs.c.id.in_(active_runs))
        columns = [runs.c[name] for name in (*EXPIRED_COLUMNS, *USAGE_COLUMNS, *CHARGE_COLUMNS, *RESERVED_COLUMNS)]
        oldest = select(*columns).where(is_expired, not_(is_active)).order_by(runs.c.heartbeat).limit(END_BATCH_SIZE)
        rows = connection.execute(oldest).all()
        if rows:
            self._end_runs(connection, rows)
        return [row.id for row in rows]

    def _end_runs(self, connection: Connection, rows: Sequence[Row[Any]]) -> None:
        rounds_by_run = {row.id: _readable_rounds(connection, row.id) for row in rows}
        connection.execute(self.statements.update_run, [self._failed_values(row) for row in rows])
        calls_by_run = {run: [call for each in rounds for call in each.calls] for run, rounds in rounds_by_run.items()}
        usage_rows = [usage for row in rows for usage in worker_usage_rows(row.id, row.created, calls_by_run[row.id])]
        if usage_rows:
            connection.execute(self.statements.upsert_worker_usage, usage_rows)
            reopen_days(connection, (row.created for row in rows))
        for row in rows:
            self.budgets.charge(connection, row.owner, [(row.key, row.created, _reserved(row))])
        append_records(connection, [_audit_record(row, rounds_by_run[row.id]) for row in rows])

    def _failed_values(self, row: Row[Any]) -> dict[str, Any]:
        hint = "" if row.idempotency_key is None else "; send the request with its Idempotency-Key again to continue it"
        return {
            "by_id": row.id,
            "by_owner": row.owner,
            "status": "failed",
            "seconds": _seconds_until_heartbeat(row),
            "error": f"{SERVER_GONE}: no sign of life for {self.seconds:g} s{hint}",
            **charge_values(_charged_at_end(row)),
        }


def _readable_rounds(connection: Connection, run: str) -> tuple[Round, ...]:
    try:
        return decode_rounds(connection.execute(select_steps(run)), run=run)
    except IncompatibleReleaseError:  # the run must end all the same
        return ()


def _reserved(row: Row[Any]) -> Amount:
    return Amount(row.reserved_usd, row.reserved_tokens)


def _charged_at_end(row: Row[Any]) -> Amount:
    """The charges of an interrupted run: calls in flight count in full, because the vendor may have billed them."""
    return Amount(row.charged_usd, row.charged_tokens) + _reserved(row)


def _audit_record(row: Row[Any], rounds: Sequence[Round]) -> RecordFactory:
    has_calls_in_flight = bool(row.reserved_usd or row.reserved_tokens)
    ended = Ended(run=row.id, key=row.key, api=row.api, model=row.model, status="failed", trace=None)
    return partial(
        unfinished_record_of,
        rounds,
        ended,
        began=datetime.fromtimestamp(row.created, UTC),
        seconds=_seconds_until_heartbeat(row),
        usage=usage_of(row),
        in_flight=InFlight(usd=row.reserved_usd, tokens=row.reserved_tokens) if has_calls_in_flight else None,
    )


def _seconds_until_heartbeat(row: Row[Any]) -> float:
    return max(0.0, float(row.heartbeat - row.created))
