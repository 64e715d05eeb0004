"""Writes what runs report, grouped by kind, so that a transaction executes each statement once for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import Connection, Row

from rl_conductor.calls.budget import Amount
from rl_conductor.trace.audit import Ended, digest_of, record_of
from rl_conductor.trace.trace import Call, PlanRecord, StepResult, Trace
from rl_conductor.types import Usage, total
from rl_conductor_server.store.audit import append
from rl_conductor_server.store.models import Status
from rl_conductor_server.store.prepared import Statements
from rl_conductor_server.store.queries import AMOUNTS

PLAN = -1
"""The position under which a round's plan is kept."""
BEGINNING = 2_000
"""Characters of questions and answers that are listed and searched."""
NOT_STORED = "it failed; why is not stored, as the request says store: false"
"""In place of an error, which may quote what was said."""


@dataclass(frozen=True)
class Begin:
    """A new run that nobody can ask for again."""

    run: str
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    """A plan or a step that is done, and what its run has used so far."""

    run: str
    usage: Usage
    charged: Amount
    round: int
    position: int
    body: PlanRecord | StepResult | None
    """`None` when no content may be stored."""


@dataclass(frozen=True)
class End:
    """The end of a run."""

    run: str
    trace: Trace
    status: Status
    charged: Amount
    keep: bool
    """Whether content may be stored."""


RunWrite: TypeAlias = Begin | Progress | End


class RunWriter:
    """Executes the writes of one process's runs."""

    def __init__(self, statements: Statements, owner: str) -> None:
        self._statements = statements
        self._owner = owner

    def write(self, connection: Connection, writes: Sequence[RunWrite]) -> list[None]:
        """Execute them in one transaction; a run's own are in the order begin, progress, end. One result for each."""
        ends = [write for write in writes if isinstance(write, End)]
        rows = [write.row for write in writes if isinstance(write, Begin)]
        if rows:
            connection.execute(self._statements.begin, rows)
        over = {write.run for write in ends}
        progress = [write for write in writes if isinstance(write, Progress) and write.run not in over]
        owned = self._owned(connection, over | {write.run for write in progress})
        self._write_progress(connection, [write for write in progress if write.run in owned])
        self._write_ends(connection, [(write, owned[write.run]) for write in ends if write.run in owned])
        return [None] * len(writes)

    def _owned(self, connection: Connection, runs: Iterable[str]) -> dict[str, Row[Any]]:
        """The rows of those runs that no other process has taken over."""
        names = list(runs)
        if not names:
            return {}
        rows = connection.execute(self._statements.owned, {"runs": names, "its_owner": self._owner})
        return {row.id: row for row in rows}

    def _write_progress(self, connection: Connection, writes: Sequence[Progress]) -> None:
        newest = {write.run: write for write in writes}
        if newest:
            changes = [self._its(write.run) | amounts(write.usage, write.charged) for write in newest.values()]
            connection.execute(self._statements.change, changes)
        steps = [
            {"run": write.run, "round": write.round, "position": write.position, "body": write.body.model_dump_json()}
            for write in writes
            if write.body is not None
        ]
        if steps:
            connection.execute(self._statements.keep, steps)

    def _write_ends(self, connection: Connection, writes: Sequence[tuple[End, Row[Any]]]) -> None:
        if not writes:
            return
        traces = [write.trace.model_dump_json() for write, _ in writes]
        changes = [
            self._its(write.run) | _end_values(write, trace) for (write, _), trace in zip(writes, traces, strict=True)
        ]
        connection.execute(self._statements.change, changes)
        connection.execute(self._statements.forget, [{"over": write.run} for write, _ in writes])
        if used := [row for write, _ in writes for row in share_rows(write.run, write.trace.calls())]:
            connection.execute(self._statements.share, used)
        append(
            connection,
            [
                partial(record_of, write.trace, _ended(row, write.status, digest_of(trace)))
                for (write, row), trace in zip(writes, traces, strict=True)
            ],
        )

    def _its(self, run: str) -> dict[str, Any]:
        return {"its_id": run, "its_owner": self._owner}


def amounts(usage: Usage, charged: Amount) -> dict[str, Any]:
    """The columns of what a run used and was charged."""
    return _used(usage) | {"charged_usd": charged.usd, "charged_tokens": charged.tokens}


def share_rows(run: str, calls: Iterable[Call]) -> list[dict[str, Any]]:
    """Rows of `shares`: what each worker used, and under the empty name what planning did."""
    by_worker: dict[str, list[Usage]] = {}
    for call in calls:
        by_worker.setdefault(call.worker or "", []).append(call.usage)
    used = {worker: total(usages) for worker, usages in by_worker.items()}
    return [{"run": run, "worker": worker, **_used(usage)} for worker, usage in used.items() if usage.calls]


def beginning(text: str) -> str:
    """As much of a text as is listed and searched."""
    return text[:BEGINNING]


def _end_values(write: End, trace: str) -> dict[str, Any]:
    error = write.trace.error
    return {
        "status": write.status,
        "seconds": write.trace.seconds,
        "error": error if write.keep or error in (None, "cancelled") else NOT_STORED,
        "trace": trace if write.keep else None,
        "answer": beginning(write.trace.text) if write.keep else None,
        **amounts(write.trace.usage, write.charged),
    }


def _ended(row: Row[Any], status: Status, trace: str) -> Ended:
    return Ended(run=row.id, key=row.key, api=row.api, model=row.model, status=status, trace=trace)


def _used(usage: Usage) -> dict[str, Any]:
    return usage.model_dump(include=set(AMOUNTS))
