"""Whose run it is: a run belongs to the process that claimed it, for as long as that process says that it lives."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, select, update

from rl_conductor.calls.budget import Amount
from rl_conductor.trace.trace import PlanRecord, Round, StepResult, Trace
from rl_conductor_server.store.codec import read
from rl_conductor_server.store.models import Claim, NewRun
from rl_conductor_server.store.prepared import Statements
from rl_conductor_server.store.tables import runs, steps
from rl_conductor_server.store.writer import PLAN

ENDED = ("seconds", "error", "trace", "answer")
"""Columns that are set only while a run is over."""


@dataclass(frozen=True)
class Claims:
    """Makes runs one process's own."""

    statements: Statements
    owner: str
    lease: float

    def claim(self, connection: Connection, run: NewRun, row: Mapping[str, Any]) -> Claim:
        """Make `run`, or the one that was begun under its name, this process's if nobody else has it."""
        made = connection.execute(self.statements.claim, row).first()
        if made is not None:
            return Claim(id=run.id, created=run.created, outcome="new")
        same = and_(runs.c.key == run.key, runs.c.idempotency == run.idempotency, runs.c.choice == run.choice)
        return self._claim_again(connection, run, connection.execute(select(runs).where(same)).one())

    def _claim_again(self, connection: Connection, run: NewRun, row: Row[Any]) -> Claim:
        known = Claim(id=row.id, created=row.created, outcome="elsewhere")
        if (row.id, row.owner, row.created) == (run.id, self.owner, run.created):  # committed, but the answer got lost
            return known.model_copy(update={"outcome": "new"})
        if row.digest != run.digest:
            return known.model_copy(update={"outcome": "mismatch"})
        if row.status == "done":
            trace = read(Trace, row.trace, run=row.id)
            return known.model_copy(update={"outcome": "done", "trace": trace})
        if not self._is_free(row) or not self._take(connection, row):
            return known
        done = {
            "rounds": self._restore(connection, row),
            "charged": Amount(row.charged_usd, row.charged_tokens),
            "inherited": row.owner != self.owner,
        }
        return known.model_copy(update={"outcome": "resumed"} | done)

    def _is_free(self, row: Row[Any]) -> bool:
        return row.status != "running" or bool(row.heartbeat < time.time() - self.lease)

    def _take(self, connection: Connection, row: Row[Any]) -> bool:
        unchanged = and_(runs.c.id == row.id, runs.c.owner == row.owner, runs.c.heartbeat == row.heartbeat)
        ours = {"owner": self.owner, "heartbeat": time.time(), "status": "running"} | dict.fromkeys(ENDED)
        taken = connection.execute(update(runs).where(unchanged).values(ours).returning(runs.c.id))
        return taken.first() is not None

    def _restore(self, connection: Connection, row: Row[Any]) -> tuple[Round, ...]:
        """What the run had done. It is under way again, so what the trace of its end held is stored as steps."""
        if row.trace is None:
            return rounds_in(connection.execute(steps_of(row.id)), run=row.id)
        rounds = read(Trace, row.trace, run=row.id).rounds
        kept = [
            {"run": row.id, "round": number, "position": position, "body": done.model_dump_json()}
            for number, one in enumerate(rounds)
            for position, done in ((PLAN, one.plan), *((result.index, result) for result in one.results))
        ]
        if kept:
            connection.execute(self.statements.keep, kept)
        return rounds


def steps_of(run: str) -> Select[Any]:
    """The plans and finished steps of a run that is not over."""
    return select(steps).where(steps.c.run == run).order_by(steps.c.round, steps.c.position)


def rounds_in(rows: Iterable[Row[Any]], *, run: str) -> tuple[Round, ...]:
    """The rounds that rows of `steps_of` hold.

    Raises:
        ConfigError: another release wrote them, in a form that this one can't read.
    """
    plans: dict[int, PlanRecord] = {}
    results: dict[int, list[StepResult]] = {}
    for one in rows:
        if one.position == PLAN:
            plans[one.round] = read(PlanRecord, one.body, run=run)
        else:
            results.setdefault(one.round, []).append(read(StepResult, one.body, run=run))
    return tuple(Round(plan=plans[number], results=tuple(results.get(number, ()))) for number in sorted(plans))
