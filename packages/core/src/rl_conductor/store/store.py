"""`Store`: runs and their steps in a database that outlives the process and may be shared by several.

A run belongs to the process that claimed it, for as long as that process says that it lives. One that was left
behind is anybody's to go on with, from the steps that it had finished.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Self

from sqlalchemy import CompoundSelect, Row, RowMapping, Select, and_, delete, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rl_conductor.audit import Chain, Ended, digest_of
from rl_conductor.events import StepFinished, WorkflowPlanned
from rl_conductor.ledger import Amount
from rl_conductor.store.auditing import append as append_record
from rl_conductor.store.auditing import read as read_records
from rl_conductor.store.database import connected
from rl_conductor.store.forgetting import forget
from rl_conductor.store.journal import Journal
from rl_conductor.store.reading import read
from rl_conductor.store.rows import Claim, NewRun, RunRow, Search, Side, Spending, Status
from rl_conductor.store.searching import AMOUNTS, CHARGES, By, condition, spending, spent
from rl_conductor.store.sessions import Sessions
from rl_conductor.store.statements import Statements
from rl_conductor.store.tables import pairs, runs, shares, steps
from rl_conductor.store.trials import Trials
from rl_conductor.trace import PlanRecord, Round, StepResult, Trace
from rl_conductor.types import Usage, total

PLAN = -1
"""The position under which a round's plan is kept."""
BEGINNING = 2_000
"""Characters of questions and answers that are listed and searched."""
EVERYTHING = Search()
LISTED = [column for column in runs.columns if column.name not in ("trace", "owner", "heartbeat", *CHARGES)]


class Store:
    """Everything that is kept; see `open`."""

    def __init__(self, engine: AsyncEngine, *, lease: float) -> None:
        self._engine = engine
        self._lease = lease
        self.owner = secrets.token_hex(16)
        """This process, for as long as it lives."""
        self.journal = Journal(engine)
        self.trials = Trials(engine, self.journal)
        self.sessions = Sessions(engine)
        self._statements = Statements.of(engine.dialect.name)

    @classmethod
    async def open(cls, url: str, *, lease: float = 10.0) -> Self:
        """The store at `url`, see `connected`; a process that is silent for `lease` seconds counts as dead.

        Raises:
            ConfigError: it can't be opened.
        """
        return cls(await connected(url), lease=lease)

    async def aclose(self) -> None:
        """Write what is still to be written, and close."""
        await self.journal.flush()
        await self._engine.dispose()

    async def ping(self) -> None:
        """Raise `SQLAlchemyError` when the database does not answer."""
        async with self._engine.connect() as connection:
            await connection.execute(text("SELECT 1"))

    # ---------------------------------------------------------------------------------- whose run

    async def claim(self, run: NewRun) -> Claim:
        """Make `run` this process's, unless a run of that name is done, alive elsewhere or of another request."""
        async with self._engine.begin() as connection:
            made = await connection.execute(self._statements.begin, self._values(run))
            if made.first() is not None:
                return Claim(id=run.id, created=run.created, outcome="new")
            return await self._claim_again(connection, run)

    def begin(self, run: NewRun) -> None:
        """Note a run that nobody can ask for again."""
        values = self._values(run)
        self.journal.add(lambda connection: connection.execute(self._statements.begin, values))

    def _values(self, run: NewRun) -> dict[str, Any]:
        return run.model_dump(exclude={"labels"}) | {
            "labels": _json(run.labels),
            "question": _beginning(run.question),
            "status": "running",
            "owner": self.owner,
            "heartbeat": time.time(),
            **_amounts(Usage(), Amount()),
        }

    async def _claim_again(self, connection: AsyncConnection, run: NewRun) -> Claim:
        same = and_(runs.c.key == run.key, runs.c.idempotency == run.idempotency, runs.c.choice == run.choice)
        row = (await connection.execute(select(runs).where(same))).one()
        known = Claim(id=row.id, created=row.created, outcome="elsewhere")
        if row.digest != run.digest:
            return known.model_copy(update={"outcome": "mismatch"})
        if row.status == "done":
            trace = read(Trace, row.trace, run=row.id)
            return known.model_copy(update={"outcome": "done", "trace": trace})
        if not self._is_free(row) or not await self._take(connection, row):
            return known
        done = {
            "rounds": await self._rounds(connection, row),
            "charged": Amount(row.charged_usd, row.charged_tokens),
            "inherited": row.owner != self.owner,
        }
        return known.model_copy(update={"outcome": "resumed"} | done)

    def _is_free(self, row: Row[Any]) -> bool:
        return row.status != "running" or bool(row.heartbeat < time.time() - self._lease)

    async def _take(self, connection: AsyncConnection, row: Row[Any]) -> bool:
        unchanged = and_(runs.c.id == row.id, runs.c.owner == row.owner, runs.c.heartbeat == row.heartbeat)
        ours = {"owner": self.owner, "heartbeat": time.time(), "status": "running"}
        taken = await connection.execute(update(runs).where(unchanged).values(ours).returning(runs.c.id))
        return taken.first() is not None

    async def side(self, key: str, idempotency: str) -> Side | None:
        """Who began to answer the request of this name; `None` when nobody did."""
        wanted = select(runs.c.side).where(runs.c.key == key, runs.c.idempotency == idempotency).limit(1)
        async with self._engine.connect() as connection:
            side: Side | None = (await connection.execute(wanted)).scalar_one_or_none()
            return side

    async def beat(self, living: Iterable[str]) -> None:
        """Say that this process lives, and so holds these of its runs; one whose end was not written may be taken."""
        mine = and_(runs.c.id.in_(living), runs.c.owner == self.owner, runs.c.status == "running")
        async with self._engine.begin() as connection:
            await connection.execute(update(runs).where(mine).values(heartbeat=time.time()))

    # -------------------------------------------------------------------------------- what was done

    def record(self, run: str, event: WorkflowPlanned | StepFinished, so_far: Usage, charged: Amount) -> None:
        """Keep a plan or a step that is done, and what the run has used `so_far` and was `charged` for that."""
        position = PLAN if isinstance(event, WorkflowPlanned) else event.result.index

        async def write(connection: AsyncConnection) -> None:
            if await self._change(connection, run, _amounts(so_far, charged)):
                body = (event.plan if isinstance(event, WorkflowPlanned) else event.result).model_dump_json()
                kept = {"run": run, "round": event.round, "position": position, "body": body}
                await connection.execute(self._statements.keep, kept)

        self.journal.add(write, news_of=run)

    def finish(self, run: str, trace: Trace, status: Status, *, charged: Amount, keep: bool = True) -> None:
        """Note the end of a run, what budgets count for it, and `keep` its trace; its steps need no longer be kept."""
        whole = trace.model_dump_json()
        values = {
            "status": status,
            "seconds": trace.seconds,
            "error": None if trace.error is None else trace.error.replace("\0", ""),
            "trace": whole if keep else None,
            "answer": _beginning(trace.text) if keep else None,
            **_amounts(trace.usage, charged),
        }

        async def write(connection: AsyncConnection) -> None:
            row = await self._change(connection, run, values)
            if row is None:
                return
            await connection.execute(self._statements.forget, {"over": run})
            if rows := _shares(run, trace):
                await connection.execute(self._statements.share, rows)
            ended = Ended(run=run, key=row.key, api=row.api, model=row.model, status=status, trace=digest_of(whole))
            await append_record(connection, trace, ended)

        self.journal.drop_news(run)
        self.journal.add(write)

    async def _change(self, connection: AsyncConnection, run: str, values: dict[str, Any]) -> Row[Any] | None:
        """Change a run's row, unless the run is in other hands by now."""
        mine = {"its_id": run, "its_owner": self.owner}
        return (await connection.execute(self._statements.change, values | mine)).first()

    def give_up(self, run: str) -> None:
        """Note that a run never began; one with a name is left to whoever asks for it next."""
        self.journal.add(lambda connection: self._change(connection, run, {"status": "cancelled"}))

    async def _rounds(self, connection: AsyncConnection, row: Row[Any]) -> tuple[Round, ...]:
        if row.trace is not None:  # it ended without an answer, or was cancelled
            return read(Trace, row.trace, run=row.id).rounds
        return await self._done(connection, row.id)

    async def _done(self, connection: AsyncConnection, run: str) -> tuple[Round, ...]:
        found = select(steps).where(steps.c.run == run).order_by(steps.c.round, steps.c.position)
        plans: dict[int, PlanRecord] = {}
        results: dict[int, list[StepResult]] = {}
        for one in await connection.execute(found):
            if one.position == PLAN:
                plans[one.round] = read(PlanRecord, one.body, run=run)
            else:
                results.setdefault(one.round, []).append(read(StepResult, one.body, run=run))
        return tuple(Round(plan=plans[number], results=tuple(results.get(number, ()))) for number in sorted(plans))

    # ------------------------------------------------------------------------------- what is known

    async def trace(self, run: str, *, key: str | None = None) -> Trace | None:
        """The trace of a run that is over; with `key`, only if it was on that key's account.

        Raises:
            ConfigError: another release wrote it, in a form that this one can't read.
        """
        wanted = select(runs.c.trace).where(runs.c.id == run, *_of(key))
        await self.journal.flush()
        async with self._engine.connect() as connection:
            found = (await connection.execute(wanted)).scalar_one_or_none()
        return None if found is None else read(Trace, found, run=run)

    async def run(self, run: str, *, key: str | None = None) -> RunRow | None:
        """A run as listed."""
        found = await self._listed(select(*LISTED).where(runs.c.id == run, *_of(key)))
        return found[0] if found else None

    async def runs(self, search: Search = EVERYTHING, *, most: int = 50) -> Sequence[RunRow]:
        """The newest runs that are wanted."""
        newest = select(*LISTED).where(condition(search)).order_by(runs.c.created.desc(), runs.c.id)
        return await self._listed(newest.limit(most))

    async def so_far(self, run: str) -> tuple[Round, ...]:
        """What a run that is not over has planned and done."""
        await self.journal.flush()
        async with self._engine.connect() as connection:
            return await self._done(connection, run)

    async def workers(self) -> Sequence[str]:
        """The names of all workers that took part in a run; the planner's is empty."""
        async with self._engine.connect() as connection:
            return (
                (await connection.execute(select(shares.c.worker).distinct().order_by(shares.c.worker))).scalars().all()
            )

    async def _listed(self, wanted: Select[Any]) -> list[RunRow]:
        await self.journal.flush()
        async with self._engine.connect() as connection:
            return [_run_row(row) for row in await connection.execute(wanted)]

    async def spent(self, key: str, *, since: float) -> Usage:
        """What was used on the account of `key` since a time.

        Forgotten runs count, too, if the whole day on which they began is within that time.
        """
        rows = await self._sums(spent(key, since=since))
        return total(Usage(**{name: row[name] for name in AMOUNTS}) for row in rows)

    async def charged_elsewhere(self, key: str, *, since: float) -> Amount:
        """What other processes, dead ones included, counted against the budget of `key` since a time; see `spent`."""
        rows = await self._sums(spent(key, since=since, but_by=self.owner))
        return sum((Amount(row["charged_usd"], int(row["charged_tokens"])) for row in rows), Amount())

    async def _sums(self, wanted: CompoundSelect[Any]) -> Sequence[RowMapping]:
        await self.journal.flush()
        async with self._engine.connect() as connection:
            rows: Sequence[RowMapping] = (await connection.execute(wanted)).mappings().all()
            return rows

    async def spending(self, by: By, *, since: float, before: float, width: int) -> Sequence[Spending]:
        """What was used in each span of `width` seconds that had a run; by worker, only of runs that are over."""
        async with self._engine.connect() as connection:
            found = (await connection.execute(spending(by, since=since, before=before, width=width))).all()
        return [
            Spending(
                name=row.name, start=row.span * width, usage=Usage(**{name: getattr(row, name) for name in AMOUNTS})
            )
            for row in found
        ]

    # ------------------------------------------------------------------------------------ the audit

    async def records(self, chain: Chain) -> AsyncGenerator[str, None]:
        """Every line of the audit record, from the first, each once `chain` has read it."""
        async with self._engine.connect() as connection, aclosing(read_records(connection, chain)) as lines:
            async for line in lines:
                yield line

    async def trace_digest(self, run: str) -> str | None:
        """SHA-256 of a run's trace as it is kept now; `None` when it is not."""
        wanted = select(runs.c.trace).where(runs.c.id == run)
        async with self._engine.connect() as connection:
            kept = (await connection.execute(wanted)).scalar_one_or_none()
        return None if kept is None else digest_of(kept)

    # ---------------------------------------------------------------------------------------- upkeep

    async def prune(self, *, before: float) -> int:
        """Forget runs and pairs from before a time, and browsers whose time is over; how many runs."""
        async with self._engine.begin() as connection:
            await self.sessions.prune(connection)
            await connection.execute(delete(pairs).where(pairs.c.created < before))
            return await forget(connection, self._statements, before=before)


def _shares(run: str, trace: Trace) -> list[dict[str, Any]]:
    used = trace.usage_by_worker() | {"": trace.planning}
    return [{"run": run, "worker": name, **_used(usage)} for name, usage in used.items() if usage.calls]


def _of(key: str | None) -> tuple[Any, ...]:
    return () if key is None else (runs.c.key == key,)


def _beginning(text: str) -> str:
    return text[:BEGINNING].replace("\0", "")


def _json(labels: dict[str, str]) -> str:
    return json.dumps(labels, sort_keys=True)


def _amounts(usage: Usage, charged: Amount) -> dict[str, Any]:
    return _used(usage) | {"charged_usd": charged.usd, "charged_tokens": charged.tokens}


def _used(usage: Usage) -> dict[str, Any]:
    return usage.model_dump(include=set(AMOUNTS))


def _run_row(row: Row[Any]) -> RunRow:
    values = row._asdict()
    amounts = {name: values.pop(name) for name in AMOUNTS}
    return RunRow.model_validate(values | {"usage": Usage(**amounts), "labels": json.loads(values["labels"])})
