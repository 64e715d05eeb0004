"""What the vendor, the server and its clients know after `server_chaos.py`, and where the three do not agree.

The server's own records are read from its SQLite file: runs, stored steps and the audit record.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path

from loopback import USAGE, VendorCall, reply_text

from rl_conductor.trace.audit import Chain
from rl_conductor.trace.trace import Call, PlanRecord, StepResult, Trace

CALL_COST = Decimal(USAGE["prompt_tokens"]) / 10**6 + Decimal(USAGE["completion_tokens"]) * 2 / 10**6
PICO = Decimal(10) ** 12
"""What the store counts of, in a US dollar."""
REPLY = re.compile(r"Reply (\d+): (.+) of question (\d+)\.")
IN_DOUBT = 1.0
"""Seconds before a kill within which what was answered or bought may not have been stored yet."""


@dataclass
class Answers:
    """What clients were told of a question."""

    is_named: bool
    """Whether it was asked under an Idempotency-Key, again and again until it was answered."""
    texts: set[str] = field(default_factory=set)
    runs: dict[str, float] = field(default_factory=dict)
    """When each was answered first, in seconds since 1970."""
    costs: set[Decimal] = field(default_factory=set)
    refused: list[int] = field(default_factory=list)
    """Statuses other than success that a server gave that was not about to start or die."""


@dataclass(frozen=True)
class Kill:
    """The server's death, and what it had put on record by then."""

    at: float
    finished: frozenset[tuple[int, str]]
    """Questions and their parts."""


@dataclass(frozen=True)
class StoredRun:
    """A run as the server's database has it."""

    id: str
    status: str
    cost: Decimal
    trace: Trace | None
    steps: tuple[Call, ...]
    """Calls of the stored steps of a run without a trace."""

    @property
    def replies(self) -> list[tuple[int, int, str]]:
        """See `replies`."""
        return list(replies(self.trace.calls() if self.trace else self.steps))


def replies(calls: Iterable[Call]) -> Iterator[tuple[int, int, str]]:
    """Number, question and part of every reply that calls on record brought."""
    for call in calls:
        if call.outcome == "ok" and call.completion:
            found = REPLY.search(call.completion.text)
            assert found is not None
            yield int(found[1]), int(found[3]), found[2]


def stored_steps(file: Path) -> dict[str, list[Call]]:
    """The calls of all stored plans and steps, by run."""
    calls: dict[str, list[Call]] = {}
    with closing(sqlite3.connect(file)) as database:
        for run, position, body in database.execute("SELECT run, position, body FROM steps"):
            kept = (PlanRecord if position < 0 else StepResult).model_validate_json(body)
            calls.setdefault(run, []).extend(kept.calls)
    return calls


def stored_runs(file: Path) -> list[StoredRun]:
    """Every run."""
    steps = stored_steps(file)
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute("SELECT id, status, cost, trace FROM runs").fetchall()
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


def audited_runs(file: Path) -> tuple[set[str], str | None]:
    """The runs that the audit record holds, and where its chain is broken."""
    chain, runs = Chain(), set()
    with closing(sqlite3.connect(file)) as database:
        for (line,) in database.execute("SELECT body FROM records ORDER BY sequence"):
            chain.read(line)
            runs.add(json.loads(line)["run"])
    return runs, chain.broken


@dataclass(frozen=True)
class Books:
    """What vendor, server and clients know once it is over."""

    vendor: Sequence[VendorCall]
    kills: Sequence[Kill]
    answers: Mapping[int, Answers]
    runs: Sequence[StoredRun]
    audited: frozenset[str]
    broken: str | None
    """Where the chain of the audit record is broken."""
    spent: Decimal
    """On the clients' key, as the server counts."""

    @cached_property
    def wrong(self) -> dict[str, list[str]]:
        """All that does not agree, by kind."""
        kinds = {
            "lost": self.lost,
            "duplicated": self.duplicated,
            "wrongly charged": self.wrongly_charged,
            "unaudited": self.unaudited,
            "refused": self.refused,
        }
        return {kind: list(check()) for kind, check in kinds.items()}

    def lost(self) -> Iterator[str]:
        """Questions without the answer that was written for them, answers without a run, and runs without an end."""
        yield from (f"{run.id} is still {run.status}" for run in self.runs if run.status == "running")
        whole = {reply_text(call) for call in self.vendor if call.outcome == "whole" and call.part != "plan"}
        done = {run.id for run in self.runs if run.status == "done"}
        for number, answers in self.answers.items():
            if answers.is_named and not answers.texts:
                yield f"question {number} was never answered"
            for text in answers.texts:
                if text not in whole or not text.endswith(f"of question {number}."):
                    yield f"question {number} was answered with {text!r}"
            for run, at in answers.runs.items():
                if run not in done and not self._is_in_doubt(at, at):
                    yield f"question {number} was answered by {run}, which is not on record as done"

    def duplicated(self) -> Iterator[str]:
        """Questions that were answered twice, and finished steps that were done again."""
        for number, answers in self.answers.items():
            if len(answers.texts) > 1 or len(answers.runs) > 1:
                yield f"question {number} has the answers {answers.texts} by {set(answers.runs)}"
        for kill in self.kills:
            for call in self.vendor:
                if call.started > kill.at and (call.question, call.part) in kill.finished:
                    yield f"{call.part} of question {call.question} was on record, but asked for again"

    def wrongly_charged(self) -> Iterator[str]:
        """Runs, calls and keys whose cost is not what was bought."""
        held = Counter(number for run in self.runs for number, _, _ in run.replies)
        yield from (f"reply {number} is charged {times} times" for number, times in held.items() if times > 1)
        told = {run: one.costs for one in self.answers.values() for run in one.runs}
        for run in self.runs:
            bought = CALL_COST * len(run.replies)
            costs = told.get(run.id, set()) if run.status == "done" else set()
            if {run.cost, *costs} != {bought}:
                yield f"{run.id} costs {run.cost}, its caller was told {costs}, and it holds {bought}"
        for call in self.forgotten():
            if not self._is_in_doubt(call.started, call.ended):
                yield f"{reply_text(call)!r} was bought, but no run knows it"
        if self.spent != sum(run.cost for run in self.runs):
            yield f"the key has spent {self.spent}, which is not the sum of its runs"

    def unaudited(self) -> Iterator[str]:
        """Runs that are over without a record, and a chain of records that is broken."""
        over = (run for run in self.runs if run.status != "running" and (run.trace or run.status == "failed"))
        yield from (
            f"{run.id} is {run.status}, but not on the audit record" for run in over if run.id not in self.audited
        )
        if self.broken is not None:
            yield self.broken

    def refused(self) -> Iterator[str]:
        """Requests that a server refused that was up."""
        for number, answers in self.answers.items():
            yield from (f"question {number} was refused with {status}" for status in answers.refused)

    def forgotten(self) -> list[VendorCall]:
        """Replies that were bought and are on no record; those that came as the server died may be."""
        known = {number for run in self.runs for number, _, _ in run.replies}
        return [call for call in self.vendor if call.outcome == "whole" and call.number not in known]

    def _is_in_doubt(self, began: float, over: float) -> bool:
        """Whether the server died as this happened, or right after it."""
        return any(began < kill.at and over > kill.at - IN_DOUBT for kill in self.kills)
