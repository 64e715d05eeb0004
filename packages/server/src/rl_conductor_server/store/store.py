"""`Store`: runs and their steps in a database that outlives the process and may be shared by several processes.

A process holds a lease on each run that it claims, and renews it. When a process dies and its leases expire, another
process can continue its runs from the steps that had finished.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Self

from sqlalchemy import Connection, Engine, Executable, Result, Row, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from rl_conductor.calls.budget import NOTHING, Amount
from rl_conductor.trace.events import StepFinished, WorkflowPlanned
from rl_conductor.trace.trace import Round, Trace
from rl_conductor.types import Usage
from rl_conductor_server.store.audit import Chain, digest_of
from rl_conductor_server.store.batches.batches import BatchStore
from rl_conductor_server.store.batches.files import FileStore
from rl_conductor_server.store.batches.items import BatchItems
from rl_conductor_server.store.clock import DatabaseClock
from rl_conductor_server.store.codec import decode, decode_rounds, usage_of
from rl_conductor_server.store.contact import Contact
from rl_conductor_server.store.database import open_database, open_writer
from rl_conductor_server.store.dialects import count_octets, select_now
from rl_conductor_server.store.erasure.erasure import ErasureStore
from rl_conductor_server.store.keys.api_keys import KeyStore
from rl_conductor_server.store.keys.budget_leases import BudgetLeases, BudgetPeriod, BudgetState
from rl_conductor_server.store.keys.sign_ins import SignIns
from rl_conductor_server.store.models import Claim, NewRun, RunRow, Search, Session, Status
from rl_conductor_server.store.reader import StoreReader
from rl_conductor_server.store.responses.conversations import ConversationStore
from rl_conductor_server.store.responses.responses import ResponseStore
from rl_conductor_server.store.runs.audit_records import read_records
from rl_conductor_server.store.runs.cache import ResponseCache
from rl_conductor_server.store.runs.experiments import ExperimentStore
from rl_conductor_server.store.runs.feedback import FeedbackStore
from rl_conductor_server.store.runs.idempotency import IdempotencyKeys
from rl_conductor_server.store.runs.leases import END_BATCH_SIZE, RunLeases
from rl_conductor_server.store.runs.queries import LISTED_COLUMNS, is_paid_by, select_steps, select_workers
from rl_conductor_server.store.runs.retention import delete_old_runs, delete_some
from rl_conductor_server.store.runs.run_writer import (
    BeginRun,
    FinishRun,
    RunWriter,
    SaveProgress,
    SaveReservation,
    charge_values,
    excerpt,
    usage_values,
    user_rows,
)
from rl_conductor_server.store.runs.search import find_runs
from rl_conductor_server.store.runs.sessions import list_sessions
from rl_conductor_server.store.statements import Statements
from rl_conductor_server.store.tables import PLAN_POSITION, USAGE_COLUMNS, pairs, runs
from rl_conductor_server.store.usage.daily_usage import delete_days
from rl_conductor_server.store.usage.spending import SpendingStore
from rl_conductor_server.store.usage.stored_sizes import StoredSizes
from rl_conductor_server.store.write_behind import WriteBehindQueue
from rl_conductor_server.threads import run_by_size

ALL_RUNS = Search()


class Store:
    """Reads and writes everything that is stored; see `open`."""

    def __init__(
        self,
        engine: AsyncEngine,
        writer: Engine,
        *,
        now: float,
        lease: float,
        search_index: bool,
        on_lost_write: Callable[[], None],
    ) -> None:
        """Use `open` instead; `now` is the database's current time."""
        self.owner = secrets.token_hex(16)
        """Identifies this process as the owner of runs and of shares of budgets."""
        self._clock = DatabaseClock(now)
        self._contact = Contact(lease)
        self._statements = Statements.for_dialect(engine.dialect.name, search_index=search_index)
        self._budgets = BudgetLeases(self._statements, self.owner, lease)
        self._leases = RunLeases(self._statements, self._budgets, self.owner, lease)
        self.write_queue = WriteBehindQueue(writer, RunWriter(self._statements, self._budgets), on_lost=on_lost_write)
        self._reader = StoreReader(engine, self.write_queue.check_available)
        self.experiments = ExperimentStore(self._reader, self.write_queue)
        self.feedback = FeedbackStore(self._reader, self.write_queue)
        self.sign_ins = SignIns(self._reader, self.write_queue, self._clock)
        self.keys = KeyStore(self._reader, self.write_queue, self._clock)
        self.responses = ResponseStore(self._reader, self.write_queue)
        self.conversations = ConversationStore(self._reader, self.write_queue, lease)
        self.sizes = StoredSizes(self._reader)
        self.spending = SpendingStore(self._reader, self.write_queue, self._budgets)
        self.cache = ResponseCache(self._reader, self.write_queue)
        self.idempotency = IdempotencyKeys(self._reader, self.write_queue)
        self.files = FileStore(self._reader, self.write_queue)
        self.batches = BatchStore(self._reader, self.write_queue)
        self.erasure = ErasureStore(self._reader, self.write_queue)
        self.items = BatchItems(self._reader, self.write_queue, self._contact, owner=self.owner, lease=lease)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        lease: float = 10.0,
        search_index: bool = True,
        create: bool = True,
        on_lost_write: Callable[[], None] = lambda: None,
    ) -> Self:
        """Opens the store at `url` and creates or migrates its tables.

        Args:
            url: such as `sqlite:///runs.db` or `postgres://user@host/name`.
            lease: seconds without a heartbeat after which a process counts as dead.
            search_index: whether to add the texts of runs to an index, in SQLite.
            create: whether to create the store if there is none.
            on_lost_write: called for each write that the database rejects for good.

        Raises:
            StoreMissingError: there is no store, and `create` is false.
            ConfigError: it can't be opened.
        """
        engine = await open_database(url, create=create)
        async with engine.connect() as connection:
            now = (await connection.execute(select_now(engine.dialect.name))).scalar_one()
        writer = open_writer(url)
        return cls(engine, writer, now=now, lease=lease, search_index=search_index, on_lost_write=on_lost_write)

    async def aclose(self) -> None:
        """Commits the queued writes, returns the rest of shares of budgets, and closes."""
        if self._budgets.leased_keys or self.write_queue.lag:  # else a command that only reads would write
            self.write_queue.add(self._budgets.close)
        await self.write_queue.aclose()
        await self._reader.aclose()

    async def ping(self) -> None:
        """Raises `SQLAlchemyError` if the database does not answer, `StoreUnavailableError` if it takes no writes."""
        self.write_queue.check_available()
        await self._reader.execute(text("SELECT 1"))

    def now(self) -> float:
        """Returns the database's current time, in seconds since 1970."""
        return self._clock.now()

    # ------------------------------------------------------------------------------------------- leases

    async def claim(self, run: NewRun) -> Claim:
        """Begins a run with an idempotency key, or finds or continues the earlier run of the same request.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        row = self._new_row(run)

        def claim(connection: Connection) -> Claim:
            self._check_clock(*_read_clock(connection))
            return self._leases.claim(connection, run, row, may_take_over=not self._contact.was_interrupted)

        return await self.write_queue.execute(claim, undo=self._undo_claim)

    def _undo_claim(self, claim: Claim) -> None:
        if claim.outcome in ("new", "resumed"):
            self.abandon_run(claim.id)

    async def renew_leases(self, active_runs: Iterable[str]) -> None:
        """Renews this process's leases on its `active_runs`; a run that is left out may be taken over."""
        run_ids, locks = list(active_runs), self.conversations.locks

        def renew(connection: Connection) -> tuple[float, float]:
            self._leases.renew(connection, run_ids)
            self._budgets.renew(connection)
            self.conversations.renew_locks(connection, locks)
            return _read_clock(connection)

        now, read_at = await self.write_queue.execute(renew, is_urgent=True)
        self._check_clock(now, read_at)
        self._clock.set(now, read_at=read_at)
        self._contact.record()

    async def end_expired_runs(self, active_runs: Iterable[str]) -> Sequence[str]:
        """Ends the runs of dead processes, and those of this process that are not in `active_runs`.

        Each fails, is charged with its known usage and gets an audit record, exactly once for all processes. A run with
        an idempotency key can still be continued by sending its request again.

        After the store was away, or its clock jumped, other processes first get the time of a lease to renew theirs.

        Returns:
            The ids of the runs that were ended.
        """
        run_ids, ended = list(active_runs), list[str]()
        self._check_clock(*await self.write_queue.execute(_read_clock))
        if self._contact.was_interrupted:
            return ended
        while True:
            batch = await self.write_queue.execute(lambda connection: self._leases.end_expired(connection, run_ids))
            ended += batch
            if len(batch) < END_BATCH_SIZE:
                return ended

    def _check_clock(self, now: float, read_at: float) -> None:
        self._contact.check_clock(self._clock.jump_to(now, read_at=read_at))

    # ------------------------------------------------------------------------------------- writing runs

    def begin_run(self, run: NewRun) -> None:
        """Stores a run without an idempotency key, which no other process can claim."""
        self.write_queue.add(BeginRun(run.id, self._new_row(run), user_rows(run)))

    def _new_row(self, run: NewRun) -> dict[str, Any]:
        return run.model_dump(exclude={"labels"}) | {
            "labels": json.dumps(run.labels, sort_keys=True),
            "question": excerpt(run.question),
            "status": "running",
            "owner": self.owner,
            **usage_values(Usage()),
            **charge_values(NOTHING),
        }

    def save_progress(
        self,
        run: str,
        event: WorkflowPlanned | StepFinished,
        usage: Usage,
        charged: Amount,
        *,
        reserved: Amount = NOTHING,
        store_content: bool = True,
    ) -> None:
        """Stores the total usage and charges of a run so far; with `store_content`, also the event's plan or step.

        What is `reserved` for calls in flight is charged as well if this process dies.
        """
        position = PLAN_POSITION if isinstance(event, WorkflowPlanned) else event.result.index
        body = event.plan if isinstance(event, WorkflowPlanned) else event.result
        stored_body = body if store_content else None
        self.write_queue.add(SaveProgress(run, usage, charged, reserved, event.round, position, stored_body))

    def save_reservation(self, run: str, charged: Amount, reserved: Amount) -> None:
        """Stores the amount reserved for the calls of a run in flight, which is charged if this process dies."""
        self.write_queue.add(SaveReservation(run, charged, reserved))

    def finish_run(
        self,
        run: str,
        trace: Trace,
        status: Status,
        *,
        charged: Amount,
        store_content: bool = True,
        error_code: str | None = None,
        answer_writes: Sequence[Callable[[Connection], object]] = (),
        source: str | None = None,
    ) -> None:
        """Stores the end of a run and its charges; with `store_content`, also its trace. Its steps are deleted.

        `answer_writes` store the answer elsewhere, too, in the same transaction: a process that dies leaves all or none
        of this. Nothing of it stays if `source`, the run whose content it repeats, was erased.
        """
        self.write_queue.add(FinishRun(run, trace, status, charged, store_content, error_code, answer_writes, source))

    def abandon_run(self, run: str, *, error: str | None = None, error_code: str | None = None) -> None:
        """Cancels a run that never began, without its question; any process may claim it by its idempotency key."""
        ended = {"status": "cancelled", "question": "", "error": error, "error_code": error_code}
        values = {"by_id": run, "by_owner": self.owner, **ended}
        self.write_queue.add(lambda connection: connection.execute(self._statements.update_run, values))

    # ------------------------------------------------------------------------------------- reading runs

    async def _read(self, query: Executable) -> Result[Any]:
        """Returns the result of a query that sees all earlier writes of this process."""
        await self.write_queue.flush()
        return await self._reader.execute(query)

    async def get_trace(self, run: str, *, key: str | None = None) -> Trace | None:
        """Returns the trace of a run that has ended; with `key`, only if that API key paid for it.

        Raises:
            ConfigError: another release wrote it in a format that this one can't read.
        """
        query = select(runs.c.trace).where(runs.c.id == run, *is_paid_by(key))
        body = (await self._read(query)).scalar_one_or_none()
        return None if body is None else await run_by_size(len(body), lambda: decode(Trace, body, run=run))

    async def measure_trace(self, run: str, *, key: str | None = None) -> int:
        """Returns the bytes of a trace; 0 if there is none."""
        size = count_octets(runs.c.trace, dialect=self._reader.dialect)
        return (await self._read(select(size).where(runs.c.id == run, *is_paid_by(key)))).scalar() or 0

    async def get_rounds(self, run: str) -> tuple[Round, ...]:
        """Returns the plans and finished steps of a run that has not ended.

        Raises:
            ConfigError: another release wrote them in a format that this one can't read.
        """
        return decode_rounds(await self._read(select_steps(run)), run=run)

    async def get_run(self, run: str, *, key: str | None = None) -> RunRow | None:
        """Returns a run; with `key`, only if that API key paid for it."""
        query = select(*LISTED_COLUMNS).where(runs.c.id == run, *is_paid_by(key))
        row = (await self._read(query)).first()
        return None if row is None else _run_row(row)

    async def list_runs(self, search: Search = ALL_RUNS, *, limit: int = 50) -> Sequence[RunRow]:
        """Lists the runs that match, newest first."""
        await self.write_queue.flush()
        return [_run_row(row) for row in await find_runs(self._reader, search, LISTED_COLUMNS, limit=limit)]

    async def list_sessions(
        self, *, key: str | None = None, before: float | None = None, limit: int = 50
    ) -> Sequence[Session]:
        """Lists the sessions by the start of their newest run, latest first, or those before a time."""
        await self.write_queue.flush()
        return await list_sessions(self._reader, limit, key=key, before=before)

    async def list_workers(self) -> Sequence[str]:
        """Lists the names of all workers that runs have called; the planner's is the empty string."""
        return (await self._reader.execute(select_workers())).scalars().all()

    # ------------------------------------------------------------------------------------------- budgets

    async def read_budget(self, period: BudgetPeriod) -> BudgetState:
        """Returns the spending of all processes in a period; raises like `extend_budget`."""
        self.write_queue.check_available()
        return await self._reader.run(lambda connection: connection.run_sync(self._budgets.read, period))

    async def extend_budget(self, period: BudgetPeriod, needed: Amount, ahead: Amount) -> BudgetState:
        """Adds `needed` to this process's share of a budget, and up to `ahead` beyond it, or nothing if it is not left.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        return await self.write_queue.execute(
            lambda connection: self._budgets.extend(connection, period, needed, ahead),
            undo=lambda state: self.return_budget(period, state.added),
        )

    def return_budget(self, period: BudgetPeriod, unused: Amount) -> None:
        """Returns a part of this process's share of a budget, for other processes."""
        self.write_queue.add(lambda connection: self._budgets.give_back(connection, period, unused))

    # -------------------------------------------------------------------------------------------- audit

    def audit_lines(self, chain: Chain) -> AsyncGenerator[str, None]:
        """Yields every line of the audit record, oldest first, after `chain` has verified it."""
        return read_records(self._reader, chain)

    async def get_trace_digest(self, run: str) -> str | None:
        """Returns the SHA-256 of a run's trace as it is stored now; `None` if there is none."""
        query = select(runs.c.trace).where(runs.c.id == run)
        body = (await self._reader.execute(query)).scalar_one_or_none()
        return None if body is None else digest_of(body)

    # ---------------------------------------------------------------------------------------- retention

    async def prune(self, *, before: float) -> int:
        """Deletes everything older than a time but audit records and keys. Returns the number of deleted runs."""
        now = self.now()

        def delete_others(connection: Connection) -> None:
            self.sign_ins.delete_expired(connection, now=now)
            self._budgets.delete_old(connection, before=before)
            self.sizes.delete_old(connection, before=before)
            delete_days(connection, until=before)

        await self.write_queue.execute(delete_others)
        for delete_old in (self.responses.delete_old, self.batches.delete_old, self.conversations.delete_old):
            await self._delete_in_batches(partial(delete_old, before=before))
        await self._delete_in_batches(lambda connection: delete_some(connection, pairs, pairs.c.created < before))
        return await self._delete_in_batches(partial(delete_old_runs, statements=self._statements, before=before))

    async def _delete_in_batches(self, delete_batch: Callable[[Connection], int]) -> int:
        """Deletes in transactions between which other processes can write, and returns the number of deleted rows."""
        deleted = 0
        while count := await self.write_queue.execute(delete_batch):
            deleted += count
        return deleted


def _read_clock(connection: Connection) -> tuple[float, float]:
    """Returns the database's time, and that of `time.monotonic`, before a commit and a busy event loop take theirs."""
    now: float = connection.execute(select_now(connection.dialect.name)).scalar_one()
    return now, time.monotonic()


def _run_row(row: Row[Any]) -> RunRow:
    values = {name: value for name, value in row._asdict().items() if name not in USAGE_COLUMNS}
    return RunRow.model_validate(values | {"usage": usage_of(row), "labels": json.loads(row.labels)})
