"""The audit record: who decided what in each run, chained by hashes so that no later change goes unseen. Pure.

A record holds names, counts and fingerprints. No word that was said is in it, and no secret, so that it may be kept
when the traces are long gone. Each names the hash of the one before it; the last hash, the chain's *head*, stands for
all of them, and whoever noted it elsewhere can tell later that nothing before it was changed, not even by us.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rl_conductor.trace.trace import Call, CallOutcome, PlanSource, Round, StepResult, Trace
from rl_conductor.types import Dollars, Usage, Value

BEGINNING = "0" * 64
"""What the first record names in place of a hash."""


class Used(Value):
    """What a call, or all of them, consumed."""

    input_tokens: int
    output_tokens: int
    usd: Dollars
    unpriced_calls: int


class AuditedCall(Value):
    """One call to one model."""

    worker: str | None
    """`None` for the planner."""
    requested: str
    answered: str | None
    """The model that really answered."""
    shown: str
    """Fingerprint of all that it was shown."""
    outcome: CallOutcome
    used: Used
    started_ms: int
    """Since the run began."""
    ms: int


class AuditedStep(Value):
    """One step: who did what, having read what."""

    worker: str
    planned_worker: str
    access: tuple[int, ...]
    status: str
    subtask: str
    """SHA-256, as all that was said."""
    reply: str | None
    calls: tuple[AuditedCall, ...]


class AuditedRound(Value):
    """One plan, as it was written and as it was run."""

    source: PlanSource
    plan: str
    """SHA-256 of the plan as written."""
    constrained: bool
    repairs: int
    rejected: int
    """Samples rejected before this one."""
    calls: tuple[AuditedCall, ...]
    steps: tuple[AuditedStep, ...]


class Ended(Value):
    """What is known of a run beside its trace."""

    run: str
    key: str
    """Name of the API key that paid."""
    api: str
    model: str
    """The pinned name of the model that was asked."""
    status: str
    trace: str | None
    """SHA-256 of the whole trace in JSON: whoever has it can tell that it is the one. `None` when there is none."""


class Record(Ended):
    """One run, from the request to the answer.

    What only the process that ran it knew is `None` when that process died.
    """

    sequence: int
    """From 1, without gaps."""
    previous: str
    """Hash of the record before."""
    began: str
    """ISO 8601, by UTC."""
    ms: int
    package: str | None
    prompts: str | None
    request: str | None
    policy: str | None
    limits: str | None
    rounds: tuple[AuditedRound, ...]
    answer: str | None
    """SHA-256 of the answer's text."""
    answered_by: tuple[int, int] | None
    """Round and step that gave it."""
    used: Used

    @property
    def line(self) -> str:
        """The record as it is kept: canonical JSON (RFC 8785), a line of it."""
        return _canonical(self.model_dump(mode="json"))


def record_of(trace: Trace, ended: Ended, *, sequence: int, previous: str) -> Record:
    """The record of a run that is over."""
    answer = trace.answer
    return Record(
        **dict(ended),
        sequence=sequence,
        previous=previous,
        began=trace.created.isoformat(timespec="milliseconds"),
        ms=_ms(trace.seconds),
        package=trace.versions.package,
        prompts=trace.versions.prompt,
        request=digest_of(trace.request.model_dump_json()),
        policy=digest_of(_canonical(trace.policy.model_dump(mode="json"))),
        limits=digest_of(_canonical(trace.limits.model_dump(mode="json"))),
        rounds=tuple(map(_round, trace.rounds)),
        answer=digest_of(trace.text) if trace.completion else None,
        answered_by=(answer.round, answer.step) if answer else None,
        used=_used(trace.usage),
    )


def unfinished_record_of(
    rounds: Iterable[Round],
    ended: Ended,
    *,
    began: datetime,
    seconds: float,
    usage: Usage,
    sequence: int,
    previous: str,
) -> Record:
    """The record of a run whose process died, from what it had stored by then."""
    return Record(
        **dict(ended),
        sequence=sequence,
        previous=previous,
        began=began.isoformat(timespec="milliseconds"),
        ms=_ms(seconds),
        package=None,
        prompts=None,
        request=None,
        policy=None,
        limits=None,
        rounds=tuple(map(_round, rounds)),
        answer=None,
        answered_by=None,
        used=_used(usage),
    )


def digest_of(text: str) -> str:
    """SHA-256, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def _round(one: Round) -> AuditedRound:
    plan = one.plan
    return AuditedRound(
        source=plan.source,
        plan=digest_of(plan.text),
        constrained=plan.constrained,
        repairs=len(plan.repairs),
        rejected=len(plan.errors),
        calls=tuple(map(_call, plan.calls)),
        steps=tuple(map(_step, one.results)),
    )


def _step(result: StepResult) -> AuditedStep:
    return AuditedStep(
        worker=result.step.worker,
        planned_worker=result.planned_worker,
        access=tuple(sorted(result.step.access)),
        status=result.status,
        subtask=digest_of(result.step.subtask),
        reply=digest_of(result.text) if result.reply else None,
        calls=tuple(map(_call, result.calls)),
    )


def _call(call: Call) -> AuditedCall:
    return AuditedCall(
        worker=call.worker,
        requested=call.model,
        answered=call.completion.model if call.completion else None,
        shown=call.fingerprint,
        outcome=call.outcome,
        used=_used(call.usage),
        started_ms=_ms(call.started),
        ms=_ms(call.seconds),
    )


def _used(usage: Usage) -> Used:
    return Used(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        usd=usage.cost,
        unpriced_calls=usage.unpriced_calls,
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


# --------------------------------------------------------------------------------------- the chain


@dataclass
class Chain:
    """A chain as far as it was read."""

    records: int = 0
    head: str = BEGINNING
    """Hash of the last record."""
    heads: set[str] = field(default_factory=set)
    """What the head ever was."""
    broken: str | None = None
    """Where it is broken first, in words."""

    def read(self, line: str) -> None:
        """The next record."""
        self.records += 1
        known = _names(line)
        if self.broken is None and known != (self.records, self.head):
            self.broken = self._why(known)
        self.head = digest_of(line)
        self.heads.add(self.head)

    def _why(self, known: tuple[object, object] | None) -> str:
        if known is None:
            return f"record {self.records} can't be read"
        if known[0] != self.records:
            return f"record {self.records} is missing or out of place"
        return f"record {self.records} names another predecessor: record {self.records - 1} was changed, or this one"

    @property
    def seal(self) -> str:
        """The line that closes an export, so that nothing can be cut off unseen."""
        return _canonical({"head": self.head, "records": self.records})


def read_export(content: bytes) -> Chain:
    """The chain of an exported file; `broken` says where any byte was changed."""
    chain = Chain()
    try:
        *lines, last = content.decode().split("\n")[:-1] or [""]
    except UnicodeDecodeError:
        chain.broken = "it is not text"
        return chain
    for line in lines:
        chain.read(line)
    if chain.broken is None and (last != chain.seal or not content.endswith(b"\n")):
        chain.broken = "the end is missing or was changed: the last line must name the head"
    return chain


def _names(line: str) -> tuple[object, object] | None:
    """The number of a record and the hash that it names; `None` when it is no record."""
    try:
        known = json.loads(line)
        return known["sequence"], known["previous"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
