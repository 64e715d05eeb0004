"""Reads exported production runs with feedback, as questions and rows of experience.

Strangers wrote what is in them: it is bounded, kept as data, and never shown in a message of the command.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from operator import not_
from pathlib import Path

from pydantic import Field

from rl_conductor._internal.jsonl import read_lines
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.scoring import Sample
from rl_conductor.trace.feedback import Feedback
from rl_conductor.trace.trace import Round, Trace
from rl_conductor.types import Dollars, Message, Request, Text, TextPart, Value, prompt_in, total
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.row_file import fingerprint

RUNS_FILE = "runs.jsonl"
MAX_QUESTION_CHARS = 16_000
"""Maximum length of a question with its conversation; longer ones are left out."""
RATED, UNRATED, CONTRADICTORY = "rated", "without feedback", "with contradictory feedback"
FAILED, PARTIAL, ROUNDS = "without an answer", "with an answer of another than the last step", "of several rounds"
ATTACHMENTS, LONG, WORKERS = "with tools, images or files", "too long", "with workers that the pool lacks"


class StoredRun(Value):
    """The part of a server's run that can be learned from."""

    id: str
    created: datetime
    question: Text
    """The user's last message."""
    request: Request | None = None
    """The whole conversation, and the answer's format; `None` if the question is all."""
    answer: Text = ""
    score: float | None = None
    """Mean of the feedback; `None` without feedback that agrees."""
    workflow: Workflow | None = None
    """The workflow as run; `None` if it did not give the answer on its own."""
    models: dict[str, str] = Field(default_factory=dict)
    """The model of each worker of the workflow at the time of the run."""
    usd: Dollars = Decimal(0)
    """Costs of the workflow's steps, without planning."""
    unpriced_calls: int = Field(default=0, exclude_if=not_)
    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0
    outcome: str
    """`rated`, or why its workflow is no experience."""

    @property
    def sample_id(self) -> str:
        """Identifies the question together with its conversation."""
        request = "" if self.request is None else self.request.model_dump_json()
        return f"run-{fingerprint(self.question, request)}"


@dataclass(frozen=True)
class RatedWorkflow:
    """A workflow that ran on a question in production, with its mean feedback and costs."""

    sample: str
    workflow: Workflow
    score: float
    answer: str
    usd: Decimal
    unpriced_calls: int
    tokens: int
    calls: int
    seconds: float


@dataclass(frozen=True)
class StoredRuns:
    """The usable runs of an export, and of earlier exports in an update."""

    runs: tuple[StoredRun, ...]
    counts: Mapping[str, int]
    """Number of runs in the file by their outcome."""

    def samples(self, *, only_rated: bool) -> tuple[Sample, ...]:
        """Builds one sample for each question; the best-rated answer is its reference answer."""
        by_question: dict[str, list[StoredRun]] = defaultdict(list)
        for run in self.runs:
            by_question[run.sample_id].append(run)
        return tuple(
            _sample(runs)
            for runs in by_question.values()
            if not only_rated or any(run.outcome == RATED for run in runs)
        )

    def rated_workflows(self, pool: WorkerPool) -> list[RatedWorkflow]:
        """Merges the rated runs of the same workflow on the same question; runs of other workers are left out."""
        merged: dict[tuple[str, Workflow], list[StoredRun]] = defaultdict(list)
        for run in self.runs:
            if run.outcome == RATED and run.workflow is not None and _has_workers(pool, run):
                merged[run.sample_id, run.workflow].append(run)
        return [_merge(sample, workflow, runs) for (sample, workflow), runs in merged.items()]

    def report(self, pool: WorkerPool) -> str:
        """Describes the counts in one line."""
        foreign = sum(run.outcome == RATED and not _has_workers(pool, run) for run in self.runs)
        counts = dict(self.counts) | ({WORKERS: foreign} if foreign else {})
        total_runs = sum(self.counts.values())
        return f"{total_runs:,} runs: " + ", ".join(f"{count:,} {label}" for label, count in counts.items())


def read_stored_runs(path: Path, *, feedback_key: str | None = None) -> StoredRuns:
    """Reads a file that `rl-conductor runs --export` wrote.

    Args:
        path: one trace per line.
        feedback_key: only feedback by this key counts.

    Raises:
        ConfigError: the file can't be read, or contains no runs.
    """
    try:
        traces = read_lines(path, Trace)
    except ConfigError as error:
        hint = "write one with rl-conductor runs --export FILE; a file of questions is a TASK"
        raise ConfigError(f"{str(path)!r} is not a file of runs: {error}; {hint}") from error
    runs = {trace.id: stored_run(trace, feedback_key) for trace in traces}
    if not runs:
        raise ConfigError(f"{str(path)!r} contains no runs; write one with rl-conductor runs --export {path.name}")
    counts = Counter(run.outcome for run in runs.values())
    usable = tuple(run for run in runs.values() if run.outcome not in (ATTACHMENTS, LONG))
    return StoredRuns(usable, counts)


def merge_stored_runs(runs: StoredRuns, folder: Path, *, update: bool) -> StoredRuns:
    """Returns the runs with those that `folder` was learned from, if `update` says so.

    Raises:
        ConfigError: there is nothing to update, or the folder was learned from something else.
    """
    path = folder / RUNS_FILE
    earlier = {run.id: run for run in read_lines(path, StoredRun)} if path.is_file() else {}
    new = {run.id: run for run in runs.runs}
    if update and not earlier:
        raise ConfigError(f"{str(folder)!r} was not learned from runs, so there is nothing to update; omit --update")
    if not update and earlier.keys() - new.keys():
        raise ConfigError(
            f"{str(folder)!r} was learned from other runs; add --update to keep them, or name another folder with --out"
        )
    return StoredRuns(tuple((earlier | new).values()), runs.counts)


def stored_run(trace: Trace, feedback_key: str | None = None) -> StoredRun:
    """Extracts the training data of a run."""
    request, round_ = trace.request, trace.rounds[0] if trace.rounds else None
    score, outcome = _score(trace.feedback, feedback_key)
    outcome = _problem(trace, round_) or outcome
    run = StoredRun(
        id=trace.id,
        created=trace.created,
        question=prompt_in(request.messages)[:MAX_QUESTION_CHARS],
        request=None if _is_plain(request) or outcome in (ATTACHMENTS, LONG) else _without_options(request),
        outcome=outcome,
    )
    if outcome != RATED:
        return run
    assert round_ is not None
    workflow = round_.workflow
    assert workflow is not None
    usage = total(call.usage for result in round_.results for call in result.calls)
    return run.model_copy(
        update={
            "answer": trace.text,
            "score": score,
            "workflow": workflow,
            "models": _models(trace, workflow),
            "usd": usage.cost,
            "unpriced_calls": usage.unpriced_calls,
            "tokens": usage.total_tokens,
            "calls": usage.calls,
            "seconds": workflow.critical_path(tuple(result.seconds for result in round_.results)),
        }
    )


def request_of(sample: Sample) -> Request:
    """Returns the question, with its conversation if it comes from a stored run."""
    content = sample.details.get("request")
    return Request(messages=(Message.user(sample.question),)) if content is None else Request.model_validate(content)


def request_text(sample: Sample) -> str:
    """Returns the question with its conversation, as text for a judge."""
    if "request" not in sample.details:
        return sample.question
    return "\n\n".join(f"{message.role}: {message.text}" for message in request_of(sample).messages)


def _score(feedback: Iterable[Feedback], key: str | None) -> tuple[float | None, str]:
    """Returns the mean score, unless there is none, or some authors or criteria rate it good and others bad."""
    entries = [entry for entry in feedback if key in (None, entry.key)]
    if not entries:
        return None, UNRATED
    if len({entry.is_positive for entry in entries}) > 1:
        return None, CONTRADICTORY
    return sum(entry.score for entry in entries) / len(entries), RATED


def _problem(trace: Trace, round_: Round | None) -> str | None:
    """Returns why the run's workflow is no experience; `None` if it is."""
    request = trace.request
    has_other_parts = any(not isinstance(part, TextPart) for message in request.messages for part in message.content)
    if request.tools or has_other_parts or any(message.role == "tool" for message in request.messages):
        return ATTACHMENTS
    if sum(len(message.text) for message in request.messages) > MAX_QUESTION_CHARS:
        return LONG
    if trace.completion is None or trace.answer is None or round_ is None or not trace.text.strip():
        return FAILED
    if trace.answer.round > 0:
        return ROUNDS
    if trace.answer.source != "final" or any(result.status == "failed" for result in round_.results):
        return PARTIAL
    return None


def _is_plain(request: Request) -> bool:
    return request.response_format is None and [message.role for message in request.messages] == ["user"]


def _without_options(request: Request) -> Request:
    """Returns the conversation and the answer's format, without the caller's sampling and without hidden state."""
    messages = tuple(Message(role=message.role, content=message.content) for message in request.messages)
    return Request(messages=messages, response_format=request.response_format)


def _models(trace: Trace, workflow: Workflow) -> dict[str, str]:
    workers = {step.worker for step in workflow.steps}
    entries = trace.setup.workers if trace.setup else ()
    return {entry.card.name: entry.model for entry in entries if entry.card.name in workers}


def _has_workers(pool: WorkerPool, run: StoredRun) -> bool:
    """Whether the pool has every worker of the run's workflow, with the same model."""
    assert run.workflow is not None
    names = {step.worker for step in run.workflow.steps}
    return all(name in pool and run.models.get(name, "") == pool[name].model.name for name in names)


def _sample(runs: Sequence[StoredRun]) -> Sample:
    liked = [run for run in runs if run.score is not None and run.score == 1]
    best = max(liked, key=lambda run: (run.created, run.id), default=None)
    request = runs[0].request
    details = {} if request is None else {"request": request.model_dump(mode="json")}
    return Sample(id=runs[0].sample_id, question=runs[0].question, answer=best.answer if best else "", details=details)


def _merge(sample: str, workflow: Workflow, runs: Sequence[StoredRun]) -> RatedWorkflow:
    count = len(runs)
    return RatedWorkflow(
        sample=sample,
        workflow=workflow,
        score=sum(run.score or 0.0 for run in runs) / count,
        answer=max(runs, key=lambda run: (run.created, run.id)).answer,
        usd=sum((run.usd for run in runs), Decimal(0)) / count,
        unpriced_calls=sum(run.unpriced_calls for run in runs),
        tokens=round(sum(run.tokens for run in runs) / count),
        calls=round(sum(run.calls for run in runs) / count),
        seconds=sum(run.seconds for run in runs) / count,
    )
