"""Writes the progress of runs, grouped by kind, so that a transaction executes each statement once for many runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import Connection, Row

from rl_conductor.calls.budget import NOTHING, Amount
from rl_conductor.trace.trace import Call, PlanRecord, StepResult, Trace
from rl_conductor.types import Usage, prompt_in, total
from rl_conductor_server.access_errors import without_access_errors
from rl_conductor_server.store.audit import Ended, digest_of, record_of
from rl_conductor_server.store.erasure.content import erase_all
from rl_conductor_server.store.erasure.copies import find_erased
from rl_conductor_server.store.keys.budget_leases import BudgetLeases
from rl_conductor_server.store.models import NewRun, Status
from rl_conductor_server.store.runs.audit_records import append_records
from rl_conductor_server.store.statements import Statements
from rl_conductor_server.store.tables import USAGE_COLUMNS
from rl_conductor_server.store.usage.daily_usage import reopen_days
from rl_conductor_server.store.usage.stored_sizes import Growth, add_sizes, size_of

EXCERPT_CHARS = 2_000
"""Characters of a question or an answer that are stored for lists and search."""
REDACTED_ERROR = "the run failed; its error is not stored because the request has store: false"
"""Replaces an error, which may quote the conversation."""


@dataclass(frozen=True)
class BeginRun:
    """Inserts a run without an idempotency key."""

    run: str
    row: Mapping[str, Any]
    users: Sequence[Mapping[str, Any]] = ()
    """Rows of `users`."""


@dataclass(frozen=True)
class SaveReservation:
    """Stores the calls of a run that are in flight, before they are sent."""

    run: str
    charged: Amount
    reserved: Amount


@dataclass(frozen=True)
class SaveProgress:
    """Stores a plan or a finished step, and the usage of its run so far."""

    run: str
    usage: Usage
    charged: Amount
    reserved: Amount
    round: int
    position: int
    body: PlanRecord | StepResult | None
    """`None` if no content may be stored."""


@dataclass(frozen=True)
class FinishRun:
    """Finishes a run and stores its trace."""

    run: str
    trace: Trace
    status: Status
    charged: Amount
    store_content: bool
    error_code: str | None
    answer_writes: Sequence[Callable[[Connection], object]] = ()
    """Store the answer elsewhere, too, in the same transaction."""
    source: str | None = None
    """The run whose content this one repeats. If it was erased, so is the content of this one."""


RunWrite: TypeAlias = BeginRun | SaveReservation | SaveProgress | FinishRun


class RunWriter:
    """Executes the writes of one process's runs."""

    def __init__(self, statements: Statements, budgets: BudgetLeases) -> None:
        self._statements = statements
        self._budgets = budgets
        self._owner = budgets.owner

    def write(self, connection: Connection, writes: Sequence[RunWrite]) -> list[None]:
        """Executes writes in one transaction; those of one run come in the order begin, progress, finish.

        Returns:
            One result for each write.
        """
        finishes = [write for write in writes if isinstance(write, FinishRun)]
        begins = [write for write in writes if isinstance(write, BeginRun)]
        if begins:
            connection.execute(self._statements.insert_run, [write.row for write in begins])
        if users := [user for write in begins for user in write.users]:
            connection.execute(self._statements.insert_user, users)
        finished = {write.run for write in finishes}
        progress = [write for write in writes if isinstance(write, SaveProgress) and write.run not in finished]
        newest = {write.run: write for write in writes if not isinstance(write, BeginRun)}
        owned = self._select_owned(connection, newest)
        if owned:
            reopen_days(connection, (row.created for row in owned.values()))
        self._write_progress(connection, [write for write in progress if write.run in owned])
        reserved = [write for write in newest.values() if isinstance(write, SaveReservation) and write.run in owned]
        self._write_reservations(connection, reserved)
        self._write_finishes(connection, [(write, owned[write.run]) for write in finishes if write.run in owned])
        if finishes and self._statements.index_runs is not None:
            connection.execute(self._statements.index_runs)
        self._charge_shares(connection, [(write, owned[run]) for run, write in newest.items() if run in owned])
        return [None] * len(writes)

    def _select_owned(self, connection: Connection, runs: Iterable[str]) -> dict[str, Row[Any]]:
        """Selects the rows of those runs that no other process has taken over."""
        run_ids = list(runs)
        if not run_ids:
            return {}
        values = {"run_ids": run_ids, "by_owner": self._owner}
        return {row.id: row for row in connection.execute(self._statements.select_owned_runs, values)}

    def _charge_shares(
        self, connection: Connection, writes: Sequence[tuple[SaveReservation | SaveProgress | FinishRun, Row[Any]]]
    ) -> None:
        """Adds the growth of the charges of runs to the budgets of their keys, if they have one."""
        growth = [
            (row.key, row.created, write.charged - Amount(row.charged_usd, row.charged_tokens))
            for write, row in writes
            if row.key in self._budgets.leased_keys
        ]
        if growth:
            self._budgets.charge(connection, self._owner, growth)

    def _write_reservations(self, connection: Connection, writes: Sequence[SaveReservation]) -> None:
        if writes:
            updates = [self._run_key(write.run) | charge_values(write.charged, write.reserved) for write in writes]
            connection.execute(self._statements.update_run, updates)

    def _write_progress(self, connection: Connection, writes: Sequence[SaveProgress]) -> None:
        newest = {write.run: write for write in writes}
        if newest:
            updates = [
                self._run_key(write.run) | usage_values(write.usage) | charge_values(write.charged, write.reserved)
                for write in newest.values()
            ]
            connection.execute(self._statements.update_run, updates)
        steps = [
            {"run": write.run, "round": write.round, "position": write.position, "body": write.body.model_dump_json()}
            for write in writes
            if write.body is not None
        ]
        if steps:
            connection.execute(self._statements.upsert_step, steps)

    def _write_finishes(self, connection: Connection, writes: Sequence[tuple[FinishRun, Row[Any]]]) -> None:
        if not writes:
            return
        traces = [write.trace.model_dump_json() for write, _ in writes]
        updates = [
            self._run_key(write.run) | _finished_values(write, trace)
            for (write, _), trace in zip(writes, traces, strict=True)
        ]
        connection.execute(self._statements.update_run, updates)
        stored = [each for each in zip(writes, traces, strict=True) if each[0][0].store_content]
        add_sizes(connection, (Growth(row.key, row.created, size_of(trace)) for (_, row), trace in stored))
        questions = [
            self._run_key(write.run) | _checked_question(write)
            for write, _ in writes
            if write.store_content and write.trace.rounds and write.trace.rounds[0].plan.checks
        ]
        if questions:
            connection.execute(self._statements.update_run, questions)
        connection.execute(self._statements.delete_steps, [{"of_run": write.run} for write, _ in writes])
        usage_rows = [
            usage for write, row in writes for usage in worker_usage_rows(write.run, row.created, write.trace.calls)
        ]
        if usage_rows:
            connection.execute(self._statements.upsert_worker_usage, usage_rows)
        for write, _ in writes:
            for write_answer in write.answer_writes:
                write_answer(connection)
        self._erase_copies(connection, [write for write, _ in writes])
        append_records(
            connection,
            [
                partial(record_of, write.trace, _ended(row, write.status, digest_of(trace)))
                for (write, row), trace in zip(writes, traces, strict=True)
            ],
        )

    def _erase_copies(self, connection: Connection, writes: Sequence[FinishRun]) -> None:
        """Erases the runs that repeat one that was erased while they ran."""
        sources = {write.source for write in writes if write.source is not None}
        erased = find_erased(connection, sources) if sources else ()
        if copies := [write.run for write in writes if write.source in erased]:
            erase_all(connection, copies)

    def _run_key(self, run: str) -> dict[str, Any]:
        return {"by_id": run, "by_owner": self._owner}


def usage_values(usage: Usage) -> dict[str, Any]:
    """Returns the columns for usage."""
    return usage.model_dump(include=set(USAGE_COLUMNS))


def charge_values(charged: Amount, reserved: Amount = NOTHING) -> dict[str, Any]:
    """Returns the columns of `runs` for charges and calls in flight."""
    return {
        "charged_usd": charged.usd,
        "charged_tokens": charged.tokens,
        "reserved_usd": reserved.usd,
        "reserved_tokens": reserved.tokens,
    }


def user_rows(run: NewRun) -> list[dict[str, Any]]:
    """Returns the rows of `users` of a run; searches ignore case."""
    names = sorted({name.lower() for name in run.users})
    return [{"run": run.id, "name": name, "created": run.created} for name in names]


def worker_usage_rows(run: str, created: float, calls: Iterable[Call]) -> list[dict[str, Any]]:
    """Returns the rows of `worker_usage` of a run: the usage of each worker, and of planning under the empty name."""
    usages: dict[str, list[Usage]] = {}
    for call in calls:
        usages.setdefault(call.worker or "", []).append(call.usage)
    totals = {worker: total(each) for worker, each in usages.items()}
    return [
        {"run": run, "worker": worker, "created": created, **usage_values(usage)}
        for worker, usage in totals.items()
        if usage.calls
    ]


def excerpt(text: str) -> str:
    """Returns the part of a question or an answer that is stored for lists and search."""
    return text[:EXCERPT_CHARS]


def _finished_values(write: FinishRun, trace: str) -> dict[str, Any]:
    error = write.trace.error and without_access_errors(write.trace.error, write.trace.calls)
    return {
        "status": write.status,
        "seconds": write.trace.seconds,
        "error": error if error is None or write.store_content or write.status == "cancelled" else REDACTED_ERROR,
        "error_code": write.error_code,
        "trace": trace if write.store_content else None,
        "answer": excerpt(write.trace.text) if write.store_content else None,
        **usage_values(write.trace.usage),
        **charge_values(write.charged),
    }


def _checked_question(write: FinishRun) -> dict[str, str]:
    """The column of a question that could not be stored before guardrails had checked it."""
    return {"question": excerpt(prompt_in(write.trace.request.messages))}


def _ended(row: Row[Any], status: Status, trace_digest: str) -> Ended:
    return Ended(run=row.id, key=row.key, api=row.api, model=row.model, status=status, trace=trace_digest)
