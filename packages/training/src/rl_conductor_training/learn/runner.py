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
from decimal import Decimal
from math import ceil

from rl_conductor.calls.budget import NOTHING, UNKNOWN_PRICE, Amount, Budget, Reservation
from rl_conductor.calls.scope import call_scope
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError, LimitError, RunError
from rl_conductor.models import Model
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.pool import close_all
from rl_conductor.scoring import Score, wrong
from rl_conductor.text.truncation import truncate_middle
from rl_conductor.trace.trace import Call, PlanRecord, Trace
from rl_conductor.types import Request, Usage, total
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.concurrency import run_together
from rl_conductor_training.learn.experience import Experience, ExperienceRow, row_key
from rl_conductor_training.learn.failures import count_outcomes, find_failures
from rl_conductor_training.learn.record import WorkerFailures
from rl_conductor_training.learn.search.costs import Cost
from rl_conductor_training.row_file import fingerprint
from rl_conductor_training.spending import cached_amount, was_limited
from rl_conductor_training.tasks import Sample, Task

REPLY_CHARS = 600
"""Characters that are kept of each step's reply."""
SHARE_DIGITS = 9

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


def request_of(sample: Sample) -> Request | str:
    """Returns the question, with its conversation if it comes from a stored run."""
    content = sample.details.get("request")
    return sample.question if content is None else Request.model_validate(content)


class SharedBudget:
    """The caps of a whole learning run; each stage may use a part of them, counted from the start of learning."""

    def __init__(self, limits: Limits, previous_spending: Amount) -> None:
        """Creates the budget.

        Args:
            limits: the caps; `seconds` counts from now.
            previous_spending: what earlier processes of the same learning run have spent.
        """
        self.limits = limits
        self.total = Budget(limits, surrounds_runs=True)
        self.total.charge(previous_spending)
        self.started = time.monotonic()
        self.largest_call = Cost()
        """The most that a call has reserved, or would have reserved if it fitted, in each unit."""

    def stage(self, share: float) -> Budget:
        """Returns the budget of a stage, which ends when this share of the caps is spent."""
        limits = self.limits
        usd = None if limits.usd is None else round(limits.usd * Decimal(str(share)), SHARE_DIGITS)
        tokens = None if limits.tokens is None else int(limits.tokens * share)
        calls = None if limits.calls is None else ceil(limits.calls * share)
        seconds = None if limits.seconds is None else limits.seconds * share
        stage = _StageBudget(Limits(usd=usd, tokens=tokens, calls=calls, seconds=seconds), self)
        stage.charge(self.total.spent)
        stage.deadline = None if seconds is None else self.started + seconds
        return stage

    @property
    def elapsed(self) -> float:
        """Seconds since the start of this process's learning."""
        return time.monotonic() - self.started

    @property
    def spending(self) -> Cost:
        """Spending of all stages."""
        amounts = self.total.spent
        return Cost(usd=float(amounts.usd), tokens=amounts.tokens, calls=amounts.calls, seconds=self.elapsed)

    def note_call(self, reserved: Amount) -> None:
        """Notes what a call reserves."""
        usd, tokens = float(reserved.usd), reserved.tokens
        largest = self.largest_call
        self.largest_call = Cost(usd=max(usd, largest.usd), tokens=max(tokens, largest.tokens), calls=1)


class _StageBudget(Budget):
    """The part of the caps that a stage may use."""

    def __init__(self, limits: Limits, shared: SharedBudget) -> None:
        super().__init__(limits, parent=shared.total, surrounds_runs=True)
        self._shared = shared

    async def acquire(self, reservation: Reservation) -> None:
        self._shared.note_call(reservation.amount)
        await super().acquire(reservation)


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
        identity = conductor.planner.setup.model_dump_json(exclude={"card": {"tags"}}) + conductor.planner.model.name
        identity += self._changed_cards(conductor)
        keys = {sample.id: row_key(sample, identity, self.workers.values()) for sample in samples}
        await self._run_all((sample, system, keys[sample.id], conductor) for sample in samples)
        return [row for sample in samples if (row := self.experience.find(keys[sample.id])) is not None]

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

    def workflow_rows(self, samples: Iterable[Sample]) -> list[ExperienceRow]:
        """Returns the rows of workflows on these questions.

        Those from before a change of the question, its scoring, the workers or the prompts are left out.
        """
        by_id = {sample.id: sample for sample in samples}
        return [
            row
            for row in self.experience.rows(by_id.values())
            if row.workflow is not None and row.key == self.workflow_key(by_id[row.sample], row.workflow)
        ]

    def find_failures(self) -> tuple[WorkerFailures, ...]:
        """Returns the workers with failed calls in the runs that this process made or reused."""
        rows = filter(None, map(self.experience.find, self.added | self.reused))
        return find_failures(row.outcomes for row in rows)

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
        call_seconds: list[float] = []
        _call_seconds.set(call_seconds)  # of this task, which runs nothing else
        with call_scope(self.budget):
            try:
                trace = await conductor.run(request_of(sample))
            except RunError as error:
                trace = error.trace
            except LimitError:
                self.is_exhausted = True
                return
        self.refund_cached(trace.calls)
        failure = _find_failure(trace, is_workflow=system == "workflow")
        score_key = "" if failure else fingerprint(sample.model_dump_json(), trace.text)
        usages: list[Usage] = []
        try:
            with call_scope(self.budget, None, usages):
                score = wrong(None, failure) if failure else await self._score(sample, trace.text, score_key)
        except LimitError:  # of a judge
            self.is_exhausted = True
            return
        if was_limited(trace, self.budget):
            self.is_exhausted = True
            return
        workflow = trace.rounds[0].plan.workflow if trace.rounds else None
        row = ExperienceRow(
            key=key,
            sample=sample.id,
            question=sample.question,
            system=system,
            workflow=workflow,
            score=score.value,
            answer=score.answer,
            error=failure,
            replies=() if system == "workflow" else _shortened_replies(trace),
            usd=trace.usage.cost,
            tokens=trace.usage.total_tokens,
            calls=trace.usage.calls,
            unpriced_calls=trace.usage.unpriced_calls,
            outcomes=count_outcomes(trace.calls),
            seconds=_latency(trace, sum(call_seconds)),
            scoring=total(usages),
            score_key=score_key,
        )
        self.experience.append(row)
        self.added.add(key)
        self.on_row(row)

    async def _score(self, sample: Sample, text: str, key: str) -> Score:
        """Scores an answer, unless the same answer to the question has its score already."""
        scores = self.experience.scores
        async with self.scoring[key]:
            if key not in scores:
                scores[key] = await self._score_anew(sample, text)
        return scores[key]

    async def _score_anew(self, sample: Sample, text: str) -> Score:
        """Scores an answer. Raises `ConfigError` if the task's scorer fails, or its judge has no price."""
        try:
            return await self.task.score(sample, text)
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


def _find_failure(trace: Trace, *, is_workflow: bool) -> str | None:
    """Explains why there is no answer, or why that of a workflow is not the work of its workers; otherwise `None`.

    A planner may rely on replacements for workers that fail; a workflow whose workers failed has not run.
    """
    for result in trace.results if is_workflow else ():
        if result.status == "failed" or result.step.worker != result.planned_worker:
            return f"step {result.index + 1}, {result.planned_worker}: {result.error}"
    return None if trace.text else trace.error or "there is no reply"


def _shortened_replies(trace: Trace) -> tuple[str, ...]:
    results = trace.rounds[0].results if trace.rounds else ()
    return tuple(truncate_middle(result.text, REPLY_CHARS) for result in results)


def _latency(trace: Trace, call_seconds: float) -> float:
    """Returns the seconds of the calls on the critical path, without the time that they waited for a free worker."""
    with_waits = sum(call.seconds + call.usage.cached_seconds for call in trace.calls)
    return trace.latency * min(call_seconds / with_waits, 1.0) if with_waits else 0.0
