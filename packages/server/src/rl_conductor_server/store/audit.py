"""Tamper-evident audit records of runs, of feedback on them and of their erasure, linked in a hash chain. Pure.

A record holds names, counts and hashes but neither conversation text nor secrets, so that it may be kept longer than
the trace. Each record contains the hash of the one before it. The last hash, the chain's *head*, covers all of them: a
copy of the head that is stored elsewhere proves later that no record before it was changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from operator import not_
from typing import Any, Literal

from pydantic import Field, TypeAdapter

from rl_conductor.trace.feedback import Feedback
from rl_conductor.trace.outcomes import CallOutcome
from rl_conductor.trace.trace import Call, Nested, PlanOrigin, Round, StepResult, Trace
from rl_conductor.types import Dollars, Usage, Value

BEGINNING = "0" * 64
"""The `previous` of the first record."""


class Used(Value):
    """The tokens and cost of one call or of a whole run."""

    input_tokens: int
    output_tokens: int
    usd: Dollars
    unpriced_calls: int


class AuditedCall(Value):
    """One call to a model, without its content."""

    worker: str | None
    """`None` for the planner."""
    requested: str
    answered: str | None
    """The model that answered, as reported by its vendor."""
    shown: str
    """`fingerprint` of the request."""
    outcome: CallOutcome
    used: Used
    started_ms: int
    """Milliseconds since the run began."""
    ms: int
    inside: tuple[AuditedCall, ...] = Field(default=(), exclude_if=not_)
    """The calls that a conductor or an agent made for this one; their usage is part of `used`."""
    left_out: int = Field(default=0, exclude_if=not_)
    """Number of calls, tools and runs inside that the trace does not contain because of their size."""


class AuditedStep(Value):
    """One step: its worker, its access list, and hashes of its texts."""

    worker: str
    planned_worker: str
    access: tuple[int, ...]
    status: str
    subtask: str
    """SHA-256, like all texts."""
    reply: str | None
    calls: tuple[AuditedCall, ...]


class AuditedRound(Value):
    """One plan, as it was written and as it ran."""

    source: PlanOrigin
    plan: str
    """SHA-256 of the plan as written."""
    constrained: bool
    repairs: int
    rejected: int
    """Samples rejected before this one."""
    calls: tuple[AuditedCall, ...]
    steps: tuple[AuditedStep, ...]


class InFlight(Value):
    """Upper bound of the calls that were in flight when a process died.

    It is charged to the API key, because vendors may have billed these calls, but no usage is known for them.
    """

    usd: Dollars
    tokens: int


class Ended(Value):
    """Metadata of an ended run that is not in its trace."""

    run: str
    key: str
    """Name of the API key that was charged."""
    api: str
    model: str
    """The pinned name of the requested model."""
    status: str
    trace: str | None
    """SHA-256 of the whole trace in JSON, which proves that a stored trace is unchanged; `None` without a trace."""


class Link(Value):
    """A record of the chain."""

    sequence: int
    """From 1, without gaps."""
    previous: str
    """Hash of the previous record."""
    run: str

    @property
    def line(self) -> str:
        """The record as one line of canonical JSON (RFC 8785)."""
        return _canonical_json(self.model_dump(mode="json"))


class Record(Ended, Link):
    """One run, from the request to the answer.

    Fields that are not stored before the end are `None` if the process died.
    """

    began: str
    """Start time in UTC, as ISO 8601."""
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
    """Round and step of the answer."""
    used: Used
    in_flight: InFlight | None = Field(default=None, exclude_if=lambda calls: calls is None)
    """Charged in addition to `used`, as an upper bound, if the process died during calls."""


class FeedbackRecord(Link):
    """Feedback on a run that was added or changed."""

    event: Literal["feedback"] = "feedback"
    author: str
    """The API key that sent it, or `@administrator`."""
    criterion: str
    """The feedback's key."""
    score: float
    comment: str | None
    """SHA-256 of the comment; `None` without one."""
    at: str
    """Time in UTC, as ISO 8601."""


class ErasureRecord(Link):
    """The erasure of a run's content before its time was over."""

    event: Literal["erasure"] = "erasure"
    by: str
    """The API key that erased it, `@administrator` with the administrator's name, or `@command-line`."""
    at: str
    """Time in UTC, as ISO 8601."""


def feedback_record_of(run: str, feedback: Feedback, *, sequence: int, previous: str) -> FeedbackRecord:
    """Creates the record of feedback."""
    return FeedbackRecord(
        sequence=sequence,
        previous=previous,
        run=run,
        author=feedback.author,
        criterion=feedback.key,
        score=feedback.score,
        comment=digest_of(feedback.comment) if feedback.comment else None,
        at=feedback.updated.isoformat(timespec="milliseconds"),
    )


def erasure_record_of(run: str, *, by: str, at: datetime, sequence: int, previous: str) -> ErasureRecord:
    """Creates the record of an erasure."""
    return ErasureRecord(sequence=sequence, previous=previous, run=run, by=by, at=at.isoformat(timespec="milliseconds"))


def parse_record(line: str) -> AuditRecord:
    """Parses a line of the audit record.

    Raises:
        ValidationError: it is not a record.
    """
    return _RECORD.validate_json(line)


def record_of(trace: Trace, ended: Ended, *, sequence: int, previous: str) -> Record:
    """Creates the record of a finished run."""
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
        policy=digest_of(_canonical_json(trace.policy.model_dump(mode="json"))),
        limits=digest_of(_canonical_json(trace.limits.model_dump(mode="json"))),
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
    in_flight: InFlight | None,
    sequence: int,
    previous: str,
) -> Record:
    """Creates the record of a run that its process did not finish, from the rounds that were stored."""
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
        in_flight=in_flight,
    )


def digest_of(text: str) -> str:
    """Hashes a text by SHA-256, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


AuditRecord = Record | FeedbackRecord | ErasureRecord
_RECORD: TypeAdapter[AuditRecord] = TypeAdapter(AuditRecord)


def _round(round_: Round) -> AuditedRound:
    plan = round_.plan
    return AuditedRound(
        source=plan.source,
        plan=digest_of(plan.text),
        constrained=plan.constrained,
        repairs=len(plan.repairs),
        rejected=len(plan.errors),
        calls=tuple(_call(call) for call in plan.calls),
        steps=tuple(map(_step, round_.results)),
    )


def _step(result: StepResult) -> AuditedStep:
    return AuditedStep(
        worker=result.step.worker,
        planned_worker=result.planned_worker,
        access=tuple(sorted(result.step.access)),
        status=result.status,
        subtask=digest_of(result.step.subtask),
        reply=digest_of(result.text) if result.reply else None,
        calls=tuple(_call(call) for call in result.calls),
    )


def _call(call: Call, began: float = 0.0) -> AuditedCall:
    """Creates the record of a call; its times count from `began` seconds after the beginning of the run."""
    return AuditedCall(
        worker=call.worker,
        requested=call.model,
        answered=call.completion.model if call.completion else None,
        shown=call.request_fingerprint,
        outcome=call.outcome,
        used=_used(call.usage),
        started_ms=_ms(began + call.started),
        ms=_ms(call.seconds),
        inside=tuple(_calls_inside(call.nested, began)) if call.nested else (),
        left_out=call.nested.left_out if call.nested else 0,
    )


def _calls_inside(nested: Nested, began: float) -> Iterator[AuditedCall]:
    yield from (_call(call, began) for call in nested.calls)
    for run in nested.runs:
        yield from (_call(call, began + run.started) for round_ in run.rounds for call in round_.calls)


def _used(usage: Usage) -> Used:
    return Used(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        usd=usage.cost,
        unpriced_calls=usage.unpriced_calls,
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _canonical_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


# --------------------------------------------------------------------------------------- the chain


@dataclass
class Chain:
    """The state of a chain's verification after the records read so far."""

    records: int = 0
    head: str = BEGINNING
    """The hash of the last record."""
    heads: set[str] = field(default_factory=set)
    """All heads of the chain so far."""
    broken: str | None = None
    """Describes the first broken link; `None` if the chain is intact."""

    def read(self, line: str) -> None:
        """Verifies the next record."""
        self.records += 1
        link = _parse_link(line)
        if self.broken is None and link != (self.records, self.head):
            self.broken = self._describe_break(link)
        self.head = digest_of(line)
        self.heads.add(self.head)

    def _describe_break(self, link: tuple[object, object] | None) -> str:
        if link is None:
            return f"record {self.records} can't be read"
        if link[0] != self.records:
            return f"record {self.records} is missing or out of place"
        return f"record {self.records} names another predecessor: record {self.records - 1} was changed, or this one"

    @property
    def seal(self) -> str:
        """The last line of an export, which reveals truncation."""
        return _canonical_json({"head": self.head, "records": self.records})


def read_export(content: bytes) -> Chain:
    """Verifies an exported file; `broken` of the returned chain says where it was changed."""
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


def _parse_link(line: str) -> tuple[object, object] | None:
    """Returns a record's sequence number and the previous record's hash; `None` if it can't be parsed."""
    try:
        record = json.loads(line)
        return record["sequence"], record["previous"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
