"""`Store`: runs and their steps in a database that outlives the process and may be shared by several.

A run belongs to the process that claimed it, for as long as that process says that it lives. One that was left
behind is anybody's to go on with, from the steps that it had finished.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Self

from sqlalchemy import CompoundSelect, Connection, Engine, Row, RowMapping, Select, delete, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from rl_conductor.calls.budget import Amount
from rl_conductor.trace.audit import Chain, digest_of
from rl_conductor.trace.events import StepFinished, WorkflowPlanned
from rl_conductor.trace.trace import Round, Trace
from rl_conductor.types import Usage, total
from rl_conductor_server.store.audit import read as read_records
from rl_conductor_server.store.claims import Claims, rounds_in, steps_of
from rl_conductor_server.store.codec import read
from rl_conductor_server.store.database import connected, connected_writer
from rl_conductor_server.store.experiments import Trials
from rl_conductor_server.store.expiry import AT_ONCE as EXPIRED_AT_ONCE
from rl_conductor_server.store.expiry import Expiry
from rl_conductor_server.store.models import Claim, NewRun, RunRow, Search, Side, Spending, Status
from rl_conductor_server.store.prepared import Statements
from rl_conductor_server.store.queries import AMOUNTS, CHARGES, By, condition, spending, spent
from rl_conductor_server.store.retention import AT_ONCE as FORGOTTEN_AT_ONCE
from rl_conductor_server.store.retention import forget
from rl_conductor_server.store.sessions import Sessions
from rl_conductor_server.store.tables import pairs, runs, shares
from rl_conductor_server.store.write_behind import Journal
from rl_conductor_server.store.writer import PLAN, Begin, End, Progress, RunWriter, amounts, beginning

EVERYTHING = Search()
LISTED = [column for column in runs.columns if column.name not in ("trace", "owner", "heartbeat", *CHARGES)]


class Store:
    """Everything that is kept; see `open`."""

    def __init__(self, engine: AsyncEngine, writer: Engine, *, lease: float, on_lost_write: Callable[[], None]) -> None:
        self._engine = engine
        self.owner = secrets.token_hex(16)
        """This process, for as long as it lives."""
        self._statements = Statements.of(engine.dialect.name)
        self._claims = Claims(self._statements, self.owner, lease)
        self._expiry = Expiry(self._statements, self.owner, lease)
        self.journal = Journal(writer, RunWriter(self._statements, self.owner), on_lost=on_lost_write)
        self.trials = Trials(engine, self.journal)
        self.sessions = Sessions(engine, self.journal)

    @classmethod
    async def open(cls, url: str, *, lease: float = 10.0, on_lost_write: Callable[[], None] = lambda: None) -> Self:
        """The store at `url`, see `connected`.

        Args:
            url: such as `sqlite:///runs.db` or `postgres://user@host/name`.
            lease: seconds of silence after which a process counts as dead.
            on_lost_write: called for each write that the database refuses for good.

        Raises:
            ConfigError: it can't be opened.
        """
        return cls(await connected(url), connected_writer(url), lease=lease, on_lost_write=on_lost_write)

    async def aclose(self) -> None:
        """Write what is still to be written, and close."""
        await self.journal.aclose()
        await self._engine.dispose()

    async def ping(self) -> None:
        """Raise `SQLAlchemyError` when the database does not answer."""
        async with self._engine.connect() as connection:
            await connection.execute(text("SELECT 1"))

    # ---------------------------------------------------------------------------------- whose run

    async def claim(self, run: NewRun) -> Claim:
        """Make `run` this process's, unless a run of that name is done, alive elsewhere or of another request.

        Raises:
            StoreAwayError: the database does not answer.
        """
        row = self._row(run)
        return await self.journal.run(lambda connection: self._claims.claim(connection, run, row), undo=self._release)

    def _release(self, claim: Claim) -> None:
        """Give back what was claimed for a caller who has left meanwhile."""
        if claim.outcome in ("new", "resumed"):
            self.give_up(claim.id)

    def begin(self, run: NewRun) -> None:
        """Note a run that nobody can ask for again."""
        self.journal.add(Begin(run.id, self._row(run)))

    def _row(self, run: NewRun) -> dict[str, Any]:
        return run.model_dump(exclude={"labels"}) | {
            "labels": json.dumps(run.labels, sort_keys=True),
            "question": beginning(run.question),
            "status": "running",
            "owner": self.owner,
            "heartbeat": time.time(),
            **amounts(Usage(), Amount()),
        }

    async def side(self, key: str, idempotency: str) -> Side | None:
        """Who began to answer the request of this name; `None` when nobody did."""
        wanted = select(runs.c.side).where(runs.c.key == key, runs.c.idempotency == idempotency).limit(1)
        async with self._engine.connect() as connection:
            side: Side | None = (await connection.execute(wanted)).scalar_one_or_none()
            return side

    async def beat(self, living: Iterable[str]) -> None:
        """Say that this process lives, and so holds these of its runs; one whose end was not written may be taken."""
        names = {"living": list(living), "its_owner": self.owner, "now": time.time()}
        if names["living"]:
            await self.journal.run(lambda connection: connection.execute(self._statements.beat, names).close())

    async def expire(self, living: Iterable[str]) -> Sequence[str]:
        """End the runs of processes that are gone, and those of this one that are not `living`; their ids.

        Each ends as failed, once for all processes: on the audit record, and charged with what it is known to have
        used. One with a name can still be continued by whoever asks for it again.
        """
        mine, ended = list(living), list[str]()
        while True:
            some = await self.journal.run(lambda connection: self._expiry.expire(connection, mine))
            ended += some
            if len(some) < EXPIRED_AT_ONCE:
                return ended

    # -------------------------------------------------------------------------------- what was done

    def record(
        self, run: str, event: WorkflowPlanned | StepFinished, so_far: Usage, charged: Amount, *, keep: bool = True
    ) -> None:
        """Store what a run has used `so_far` and was `charged`; with `keep`, also the plan or the step that is done."""
        position = PLAN if isinstance(event, WorkflowPlanned) else event.result.index
        body = event.plan if isinstance(event, WorkflowPlanned) else event.result
        self.journal.add(Progress(run, so_far, charged, event.round, position, body if keep else None))

    def finish(self, run: str, trace: Trace, status: Status, *, charged: Amount, keep: bool = True) -> None:
        """Note the end of a run, what budgets count for it, and `keep` its trace; its steps need no longer be kept."""
        self.journal.add(End(run, trace, status, charged, keep))

    def give_up(self, run: str) -> None:
        """Note that a run never began; one with a name is left to whoever asks for it next."""
        values = {"its_id": run, "its_owner": self.owner, "status": "cancelled"}
        self.journal.add(lambda connection: connection.execute(self._statements.change, values))

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
            return rounds_in(await connection.execute(steps_of(run)), run=run)

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

        def prune_others(connection: Connection) -> None:
            self.sessions.prune(connection)
            connection.execute(delete(pairs).where(pairs.c.created < before))

        await self.journal.run(prune_others)
        forgotten = 0
        while True:
            some = await self.journal.run(lambda connection: forget(connection, self._statements, before=before))
            forgotten += some
            if some < FORGOTTEN_AT_ONCE:
                return forgotten


def _of(key: str | None) -> tuple[Any, ...]:
    return () if key is None else (runs.c.key == key,)


def _run_row(row: Row[Any]) -> RunRow:
    values = row._asdict()
    used = {name: values.pop(name) for name in AMOUNTS}
    return RunRow.model_validate(values | {"usage": Usage(**used), "labels": json.loads(values["labels"])})
