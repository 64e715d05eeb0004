"""Compares the records of the vendor, the server and its clients after `server_chaos.py`.

The server's records are read from its database: runs, stored steps and the audit record.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any

from loopback import USAGE, VendorCall, reply_text
from sqlalchemy import create_engine
from sqlalchemy import text as sql

from rl_conductor.trace.trace import Call, PlanRecord, StepResult, Trace
from rl_conductor_server.store.audit import Chain

CALL_COST = Decimal(USAGE["prompt_tokens"]) / 10**6 + Decimal(USAGE["completion_tokens"]) * 2 / 10**6
PICO = Decimal(10) ** 12
"""Units of the store's costs per US dollar."""
REPLY = re.compile(r"Reply (\d+): (.+) of question (\d+)\.")
IN_DOUBT = 1.0
"""Seconds before a kill within which an answer or a call may not have been stored yet."""


@dataclass
class Answers:
    """The answers to one question that clients received."""

    has_key: bool
    """Whether it was sent with an Idempotency-Key and repeated until it was answered."""
    texts: set[str] = field(default_factory=set)
    runs: dict[str, float] = field(default_factory=dict)
    """Time of the first answer of each run, in seconds since 1970."""
    costs: set[Decimal] = field(default_factory=set)
    refused: list[int] = field(default_factory=list)
    """Error statuses of a server that was neither starting nor being killed."""


@dataclass(frozen=True)
class Kill:
    """A kill of the server, and the steps that it had stored by then."""

    time: float
    """Seconds since 1970."""
    finished: frozenset[tuple[int, str]]
    """Questions and their parts."""


@dataclass(frozen=True)
class StoredRun:
    """A run in the server's database."""

    id: str
    status: str
    cost: Decimal
    trace: Trace | None
    steps: tuple[Call, ...]
    """Calls of the stored steps of a run without a trace."""

    @property
    def replies(self) -> list[tuple[int, int, str]]:
        return list(replies(self.trace.calls if self.trace else self.steps))


def replies(calls: Iterable[Call]) -> Iterator[tuple[int, int, str]]:
    """Yields number, question and part of the reply of every successful call."""
    for call in calls:
        if call.outcome == "ok" and call.completion:
            match = REPLY.search(call.completion.text)
            assert match is not None
            yield int(match[1]), int(match[3]), match[2]


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Runs a query in the database at an SQLAlchemy URL."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sql(statement))]
    finally:
        engine.dispose()


def read_steps(url: str) -> dict[str, list[Call]]:
    """Reads the calls of all stored plans and steps, by run."""
    calls: dict[str, list[Call]] = {}
    for run, position, body in query(url, "SELECT run, position, body FROM steps"):
        record = (PlanRecord if position < 0 else StepResult).model_validate_json(body)
        calls.setdefault(run, []).extend(record.calls)
    return calls


def read_runs(url: str, *, key: str) -> list[StoredRun]:
    """Reads all runs of an API key."""
    steps = read_steps(url)
    rows = query(url, f"SELECT id, status, cost, trace FROM runs WHERE key = '{key}'")
    return [
        StoredRun(
            run,
            status,
            Decimal(cost) / PICO,
            None if trace is None else Trace.model_validate_json(trace),
            tuple(steps.get(run, ())),
        )
        for run, status, cost, trace in rows
    ]


def read_audit(url: str) -> tuple[set[str], str | None]:
    """Reads the runs in the audit record, and where its hash chain is broken."""
    chain, runs = Chain(), set()
    for (line,) in query(url, "SELECT line FROM audit_records ORDER BY sequence"):
        chain.read(line)
        runs.add(json.loads(line)["run"])
    return runs, chain.broken


@dataclass(frozen=True)
class Records:
    """The records of vendor, server and clients after a test."""

    vendor: Sequence[VendorCall]
    kills: Sequence[Kill]
    answers: Mapping[int, Answers]
    runs: Sequence[StoredRun]
    audited: frozenset[str]
    broken: str | None
    """The place at which the hash chain of the audit record is broken; `None` if it is intact."""
    key_spending: Decimal
    """Spending of the clients' key, as the server counts it."""

    @cached_property
    def discrepancies(self) -> dict[str, list[str]]:
        """Discrepancies between the records, by kind."""
        kinds = {
            "lost": self.lost,
            "duplicated": self.duplicated,
            "wrongly charged": self.wrongly_charged,
            "unaudited": self.unaudited,
            "refused": self.refused,
        }
        return {kind: list(check()) for kind, check in kinds.items()}

    def lost(self) -> Iterator[str]:
        """Finds questions without their own answer, answers without a run, and runs that never ended."""
        yield from (f"{run.id} is still {run.status}" for run in self.runs if run.status == "running")
        complete_replies = {reply_text(call) for call in self.vendor if call.outcome == "whole" and call.part != "plan"}
        finished_runs = {run.id for run in self.runs if run.status == "done"}
        for number, answers in self.answers.items():
            if answers.has_key and not answers.texts:
                yield f"question {number} was never answered"
            for text in answers.texts:
                if text not in complete_replies or not text.endswith(f"of question {number}."):
                    yield f"question {number} was answered with {text!r}"
            for run, time in answers.runs.items():
                if run not in finished_runs and not self._is_in_doubt(time, time):
                    yield f"question {number} was answered by {run}, which is not on record as done"

    def duplicated(self) -> Iterator[str]:
        """Finds questions that were answered twice, and finished steps that were repeated."""
        for number, answers in self.answers.items():
            if len(answers.texts) > 1 or len(answers.runs) > 1:
                yield f"question {number} has the answers {answers.texts} by {set(answers.runs)}"
        for kill in self.kills:
            for call in self.vendor:
                if call.started > kill.time and (call.question, call.part) in kill.finished:
                    yield f"{call.part} of question {call.question} was on record, but asked for again"

    def wrongly_charged(self) -> Iterator[str]:
        """Finds runs, calls and keys with a cost that differs from that of the vendor's replies."""
        charged_replies = Counter(number for run in self.runs for number, _, _ in run.replies)
        yield from (
            f"reply {number} is charged {times} times" for number, times in charged_replies.items() if times > 1
        )
        client_costs = {run: answers.costs for answers in self.answers.values() for run in answers.runs}
        for run in self.runs:
            reply_cost = CALL_COST * len(run.replies)
            costs = client_costs.get(run.id, set()) if run.status == "done" else set()
            if {run.cost, *costs} != {reply_cost}:
                yield f"{run.id} costs {run.cost}, its caller received {costs}, and its replies cost {reply_cost}"
        for call in self.forgotten():
            if not self._is_in_doubt(call.started, call.ended):
                yield f"{reply_text(call)!r} was paid, but no run contains it"
        if self.key_spending != sum(run.cost for run in self.runs):
            yield f"the key has spent {self.key_spending}, which is not the sum of its runs"

    def unaudited(self) -> Iterator[str]:
        """Finds ended runs without an audit record, and a broken hash chain."""
        ended = (run for run in self.runs if run.status != "running" and (run.trace or run.status == "failed"))
        yield from (
            f"{run.id} is {run.status}, but not on the audit record" for run in ended if run.id not in self.audited
        )
        if self.broken is not None:
            yield self.broken

    def refused(self) -> Iterator[str]:
        """Finds requests that a running server refused."""
        for number, answers in self.answers.items():
            yield from (f"question {number} was refused with {status}" for status in answers.refused)

    def forgotten(self) -> list[VendorCall]:
        """Paid replies that no run contains; this is allowed for replies that arrived when the server was killed."""
        recorded = {number for run in self.runs for number, _, _ in run.replies}
        return [call for call in self.vendor if call.outcome == "whole" and call.number not in recorded]

    def _is_in_doubt(self, started: float, ended: float) -> bool:
        """Whether the server was killed during this time span or right after it."""
        return any(started < kill.time and ended > kill.time - IN_DOUBT for kill in self.kills)


def stream_text(body: str) -> str | None:
    """Returns the text of a complete stream; `None` if it is incomplete."""
    events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]" or any('"error"' in event for event in events):
        return None
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
