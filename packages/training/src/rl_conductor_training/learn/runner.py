"""Runs workflows and planners on questions within a budget, and stores each result in the table of experience."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

from rl_conductor.calls.budget import NOTHING, UNKNOWN_PRICE, Budget
from rl_conductor.calls.scope import call_scope
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError, LimitError, ModelError, RunError
from rl_conductor.models import Model
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.pool import close_all
from rl_conductor.scoring import Score, wrong
from rl_conductor.text.truncation import truncate_middle
from rl_conductor.trace.events import Event, Finished
from rl_conductor.trace.trace import Call, PlanRecord, Trace
from rl_conductor.types import Usage, total
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.concurrency import run_together
from rl_conductor_training.cut_off_replies import CutOffReplies, count_finishes, find_cut_off
from rl_conductor_training.learn.contained_answers import describe_contained_answers, find_contained_answer
from rl_conductor_training.learn.experience import Experience, ExperienceRow, describe_scoring, row_key
from rl_conductor_training.learn.failures import count_outcomes, find_failures
from rl_conductor_training.learn.production.stored_runs import request_of
from rl_conductor_training.learn.record import WorkerFailures
from rl_conductor_training.row_file import fingerprint
from rl_conductor_training.spending import cached_amount, was_limited
from rl_conductor_training.tasks import Sample, Task
from rl_conductor_training.tasks.scorers.judge import UNDECIDED, undecided_remark

MIN_VERDICTS = 10
"""Number of equal verdicts of a judge from which a remark is made."""
REPLY_CHARS = 600
"""Characters that are kept of each step's reply."""

_call_seconds: ContextVar[list[float] | None] = ContextVar("_call_seconds", default=None)
"""Collects the seconds of the calls of a run, without the time that they waited for a free worker."""


def add_call_seconds(seconds: float) -> None:
    """Adds the seconds of a call to the current run, if there is one."""
    collected = _call_seconds.get()
    if collected is not None:
        collected.append(seconds)


@contextmanager
def _unlogged_failures() -> Iterator[None]:
    """Keeps failures of the table's runs out of the log, since they are rows; runs of others are logged as usual."""

    def is_of_others(_: logging.LogRecord) -> bool:
        return _call_seconds.get() is None

    log = logging.getLogger("rl_conductor.run")
    log.addFilter(is_of_others)
    try:
        yield
    finally:
        log.removeFilter(is_of_others)


class _Scored(NamedTuple):
    """The score of a run."""

    score: Score
    failure: str | None
    """Why the run has no answer."""
    key: str = ""
    """Identifies the question and the answer, see `ExperienceRow.score_key`."""
    usage: Usage = Usage()
    """Usage of a judge."""


@dataclass
class Runner:
    """Runs systems on questions. Results that are in the table are not run again, apart from those of production."""

    task: Task
    """The scorer of all questions."""
    conductor: Conductor
    """The pool and the prompted planner."""
    experience: Experience
    workers: Mapping[str, str]
    """Fingerprints of the workers by name."""
    planner_version: str = ""
    """The settings of the planner's model that its name does not show."""
    concurrency: int = 4
    on_row: Callable[[ExperienceRow], None] = lambda _row: None
    on_status: Callable[[str], None] = lambda _status: None
    """Called with the progress of work without rows, such as training."""
    budget: Budget = field(default_factory=lambda: Budget(Limits(), surrounds_runs=True))
    """The budget of the current stage."""
    is_exhausted: bool = False
    """Whether a run of the current stage did not fit into its budget."""
    added: set[str] = field(default_factory=set)
    """Keys of the rows that this process added."""
    reused: set[str] = field(default_factory=set)
    """Keys of the rows of earlier processes that took the place of runs."""
    scoring: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """Locks by `score_key`: the same reply of several runs at the same time is scored once."""
    opened: list[Model] = field(default_factory=list)
    """Models that learners opened besides those of the conductor."""

    async def aclose(self) -> None:
        """Closes the conductor and the models that learners opened."""
        await close_all((self.conductor, *self.opened))

    def begin_stage(self, budget: Budget) -> None:
        """Continues with another budget."""
        self.budget, self.is_exhausted = budget, False

    async def run_workflows(self, pairs: Iterable[tuple[Sample, Workflow]]) -> None:
        """Runs each workflow on its question, as far as the budget reaches."""
        pairs = list(pairs)
        conductors = {
            workflow: self.conductor.replaced(
                selector=WorkflowSelector(workflows=(workflow,)), limits=Limits(steps=len(workflow.steps))
            )
            for workflow in dict.fromkeys(workflow for _, workflow in pairs)
        }
        await self._run_all(
            (sample, "workflow", self.workflow_key(sample, workflow), conductors[workflow])
            for sample, workflow in pairs
        )

    async def run_conductor(self, samples: Sequence[Sample], system: str, conductor: Conductor) -> list[ExperienceRow]:
        """Runs a conductor that plans on each question; returns the rows within the budget, in order."""
        identity = self.describe_planner(conductor) + self._changed_cards(conductor)
        keys = {sample.id: row_key(sample, identity, self.workers.values()) for sample in samples}
        await self._run_all((sample, system, keys[sample.id], conductor) for sample in samples)
        rows = ((sample, self.experience.find(keys[sample.id])) for sample in samples)
        return [row.about(sample) for sample, row in rows if row is not None]

    async def plan(self, sample: Sample) -> PlanRecord | None:
        """Asks the planner for a plan; `None` if the budget left no room for it."""
        if self._is_over():
            return None
        with call_scope(self.budget):
            try:
                record = await self.conductor.plan(request_of(sample))
            except LimitError:
                return None
        self.refund_cached(record.calls)
        return record

    def workflow_rows(self, samples: Sequence[Sample]) -> list[ExperienceRow]:
        """Returns the rows of workflows on these questions.

        Those from before a change of the question, its scoring, the workers or the prompts are left out.
        """
        by_question: dict[str, list[Sample]] = defaultdict(list)
        for sample in samples:
            by_question[sample.question].append(sample)
        return [
            row.about(sample)
            for row in self.experience.rows(samples)
            for sample in by_question[row.question]
            if row.workflow is not None and row.key == self.workflow_key(sample, row.workflow)
        ]

    def find_failures(self) -> tuple[WorkerFailures, ...]:
        """Returns the workers with failed calls in the runs that this process made or reused."""
        return find_failures(row.outcomes for row in self._used_rows())

    def find_cut_off(self) -> tuple[CutOffReplies, ...]:
        """Returns the workers with replies that were cut off in the runs that this process made or reused."""
        return find_cut_off(row.finishes for row in self._used_rows())

    def describe_verdicts(self) -> Iterator[str]:
        """Yields a remark if a judge gave no clear verdict on replies of these runs, or the same one on all of many."""
        undecided, replies = self._count_undecided()
        if undecided:
            yield undecided_remark(undecided, f"{replies:,} different replies")
        verdicts = {row.score_key: row.score for row in self._used_rows() if row.scoring.calls and not row.undecided}
        if len(verdicts) >= MIN_VERDICTS and len(set(verdicts.values())) == 1:
            verdict = "right" if all(verdicts.values()) else "wrong"
            yield (
                f"the judge found all {len(verdicts):,} different replies {verdict}: read some of them, since a judge "
                "that always says the same can't compare workers"
            )

    def describe_contained_answers(self) -> Iterator[str]:
        """Yields a remark if many replies of these runs that count as wrong contain the right answer."""
        return describe_contained_answers(self.task.samples, self._used_rows())

    def require_verdicts(self) -> None:
        """Checks that a judge decided on any of the replies so far: if not, all scores are 0 and teach nothing.

        Raises:
            ConfigError: it did not.
        """
        undecided, replies = self._count_undecided()
        if undecided == replies > 1:
            raise ConfigError(
                f"the judge gave no clear verdict on any of the first {replies:,} different replies: {UNDECIDED}; name "
                "another judge"
            )

    def _count_undecided(self) -> tuple[int, int]:
        """Returns the number of different replies without a clear verdict of a judge, and that of all."""
        verdicts = {row.score_key: row.undecided for row in self._used_rows() if row.score_key}
        return sum(verdicts.values()), len(verdicts)

    def _used_rows(self) -> Iterable[ExperienceRow]:
        """Returns the rows that this process added or reused."""
        return filter(None, map(self.experience.find, self.added | self.reused))

    def describe_planner(self, conductor: Conductor) -> str:
        """Serialises all that affects the plans of a conductor, apart from its workers."""
        setup = conductor.planner.setup.model_dump_json(exclude={"card": {"tags"}})
        return setup + conductor.planner.model.name + self.planner_version

    def workflow_key(self, sample: Sample, workflow: Workflow) -> str:
        """Computes the key of a workflow's row; workers that the pool lacks have no fingerprint."""
        names = sorted({step.worker for step in workflow.steps})
        return row_key(sample, workflow.model_dump_json(), (self.workers.get(name, "") for name in names))

    def _changed_cards(self, conductor: Conductor) -> str:
        """Returns the cards that differ from those of the pool, as JSON; empty if none does."""
        cards = {name: worker.card for name, worker in conductor.pool.items()}
        changed = [card.model_dump_json() for name, card in cards.items() if card != self.conductor.pool[name].card]
        return "".join(changed)

    async def _run_all(self, runs: Iterable[tuple[Sample, str, str, Conductor]]) -> None:
        slots = asyncio.Semaphore(self.concurrency)

        async def run(sample: Sample, system: str, key: str, conductor: Conductor) -> None:
            row = self.experience.find(key)
            if row is not None and row.source == "learn":
                self.reused |= {key} - self.added
                return
            async with slots:
                if not self._is_over():
                    await self._run(sample, system, key, conductor)

        with _unlogged_failures():
            await run_together(run(*arguments) for arguments in runs)

    async def _run(self, sample: Sample, system: str, key: str, conductor: Conductor) -> None:
        """Runs a system on a question, and adds the row unless the budget is used up before."""
        call_seconds: list[float] = []
        _call_seconds.set(call_seconds)  # of this task, which runs nothing else
        try:
            trace = await self._run_and_refund(sample, conductor)
            failure = _find_failure(trace, is_workflow=system == "workflow")
            scored = await self._score(sample, trace.text, failure)
        except LimitError:  # of a call to a worker or to a judge
            self.is_exhausted = True
            return
        if was_limited(trace, self.budget):
            self.is_exhausted = True
            return
        row = _build_row(key, sample, system, trace, scored, seconds=_latency(trace, sum(call_seconds)))
        self.experience.append(row)
        self.added.add(key)
        self.on_row(row)

    async def _run_and_refund(self, sample: Sample, conductor: Conductor) -> Trace:
        """Returns the trace of a run, even if it failed. Raises `LimitError` if the budget left no room for a call."""

        def refund(event: Event) -> None:
            if isinstance(event, Finished):  # also of a run that is cancelled
                self.refund_cached(event.trace.calls)

        with call_scope(self.budget):
            try:
                return await conductor.run(request_of(sample), on_event=refund)
            except RunError as error:
                return error.trace

    async def _score(self, sample: Sample, text: str, failure: str | None) -> _Scored:
        """Scores the answer of a run. Raises `LimitError` if the budget left no room for a judge."""
        if failure:
            return _Scored(wrong(None, failure), failure)
        key = fingerprint(describe_scoring(sample), text)
        usages: list[Usage] = []
        with call_scope(self.budget, None, usages):
            score = await self._score_once(sample, text, key)
        return _Scored(score, None, key, total(usages))

    async def _score_once(self, sample: Sample, text: str, key: str) -> Score:
        """Scores an answer, unless the same answer to the question has its score already."""
        scores = self.experience.scores
        async with self.scoring[key]:
            if key not in scores:
                scores[key] = await self._score_anew(sample, text)
        return scores[key]

    async def _score_anew(self, sample: Sample, text: str) -> Score:
        """Scores an answer that has no score yet.

        Raises:
            ConfigError: the task's scorer fails, or its judge has no price.
            ModelError: the judge did not reply.
        """
        try:
            return await self.task.score(sample, text)
        except ModelError as error:
            problem = (
                f"the judge failed on a reply to question {sample.id!r} ({truncate_middle(sample.question, 60)!r}): "
                f"{error}; what was scored is kept: run the same command again, or name another judge"
            )
            raise ModelError(problem, model=error.model, status=error.status, retryable=error.retryable) from error
        except LimitError as error:
            if error.needed != UNKNOWN_PRICE:
                raise
            problem = f"the judge can't be used under a cap in dollars: {error}, or cap the tokens"
            raise ConfigError(problem) from error

    def refund_cached(self, calls: Iterable[Call]) -> None:
        """Takes the charges for replies from the cache back from the budgets of the stage and of the run."""
        amount = cached_amount(calls)
        budget: Budget | None = self.budget
        while budget is not None:
            budget.charge(NOTHING - amount)
            budget = budget.parent

    def _is_over(self) -> bool:
        deadline = self.budget.shared_deadline()
        self.is_exhausted = self.is_exhausted or (deadline is not None and time.monotonic() >= deadline.time)
        return self.is_exhausted


def _build_row(
    key: str, sample: Sample, system: str, trace: Trace, scored: _Scored, *, seconds: float
) -> ExperienceRow:
    return ExperienceRow(
        key=key,
        sample=sample.id,
        question=sample.question,
        system=system,
        workflow=trace.rounds[0].plan.workflow if trace.rounds else None,
        score=scored.score.value,
        answer=scored.score.answer,
        contained_answer="" if scored.score.right else find_contained_answer(sample, trace.text),
        error=scored.failure,
        replies=() if system == "workflow" else _shortened_replies(trace),
        fallback_reason=_find_fallback_reason(trace),
        usd=trace.usage.cost,
        tokens=trace.usage.total_tokens,
        calls=trace.usage.calls,
        unpriced_calls=trace.usage.unpriced_calls,
        outcomes=count_outcomes(trace.calls),
        finishes=count_finishes(trace.calls),
        seconds=seconds,
        scoring=scored.usage,
        score_key=scored.key,
        undecided=scored.score.undecided,
    )


def _find_failure(trace: Trace, *, is_workflow: bool) -> str | None:
    """Explains why there is no answer, or why that of a workflow is not the work of its workers; otherwise `None`.

    A planner may rely on replacements for workers that fail; a workflow whose workers failed has not run.
    """
    for result in trace.results if is_workflow else ():
        if result.status == "failed" or result.step.worker != result.planned_worker:
            return f"step {result.index + 1}, {result.planned_worker}: {result.error}"
    return None if trace.text else trace.error or "there is no reply"


def _find_fallback_reason(trace: Trace) -> str:
    plan = trace.rounds[0].plan if trace.rounds else None
    return plan.errors[-1] if plan is not None and plan.source == "fallback" and plan.errors else ""


def _shortened_replies(trace: Trace) -> tuple[str, ...]:
    results = trace.rounds[0].results if trace.rounds else ()
    return tuple(truncate_middle(result.text, REPLY_CHARS) for result in results)


def _latency(trace: Trace, call_seconds: float) -> float:
    """Returns the seconds of the calls on the critical path, without the time that they waited for a free worker."""
    with_waits = sum(call.seconds + call.usage.cached_seconds for call in trace.calls)
    return trace.latency * min(call_seconds / with_waits, 1.0) if with_waits else 0.0
