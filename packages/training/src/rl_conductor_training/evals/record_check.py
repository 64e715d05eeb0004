"""Runs a learned conductor again on its held-out questions, and compares the scores with those of its record.

The rule: the conductor is worse if the 95 % interval of the paired difference lies below zero, and a test that flips
the signs of whole groups of questions has p < 0.05. These are the interval and the test of the benchmark. Without any
change, at most one check in 40 fails by chance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from decimal import Decimal
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rl_conductor._internal.formatting import dollars
from rl_conductor._internal.jsonl import read_value
from rl_conductor.calls.budget import NOTHING
from rl_conductor.conductor import Conductor
from rl_conductor.config.learned_folder import (
    EXPERIENCE_FILE,
    OPENING_FILE,
    ConductorFile,
    list_pool_changes,
    read_conductor_file,
)
from rl_conductor.errors import ConfigError, LimitError
from rl_conductor.models import Model
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.text.truncation import truncate_middle
from rl_conductor.types import Dollars, Request, Text, Value
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.learn.budget import LearningBudget
from rl_conductor_training.learn.data import HeldOutOpening, load_questions, name_groups
from rl_conductor_training.learn.experience import Experience, ExperienceRow
from rl_conductor_training.learn.runner import Runner
from rl_conductor_training.statistics import Difference, Estimate, estimate, mean_difference
from rl_conductor_training.tasks import Sample, Task

LISTED_CHANGES = 10
"""Number of changed answers that a report lists."""
QUESTION_CHARS = 80


class AnswerChange(Value):
    """A question with another score than the recorded one."""

    id: str
    """Id of the sample."""
    question: Text
    """The question."""
    recorded: float
    """The score in the record."""
    score: float
    """The score now."""
    answer: Text | None
    """The answer that the scorer found now."""
    error: Text | None
    """Why there is no reply now."""


class RecordComparison(Value):
    """The scores of a learned conductor now, and those of its record, on the same held-out questions."""

    folder: str
    """The folder of the learned conductor."""
    method: str
    """The learned system, such as `linear`."""
    recorded: Estimate
    """The mean score in the record."""
    now: Estimate
    """The mean score now."""
    difference: Difference
    """The present score minus the recorded one; positive where the conductor became better."""
    detectable: int
    """The number of recorded right answers, each of another group where possible, whose loss would be significant."""
    changes: tuple[AnswerChange, ...]
    """The questions with another score, the lost ones first."""
    pool_changes: tuple[str, ...]
    """Differences of the workers and the prompts from those at the time of learning."""
    usd: Dollars
    """US dollars that the comparison cost."""
    tokens: int
    """Tokens that the comparison used."""

    @property
    def is_worse(self) -> bool:
        """Whether the loss is significant."""
        return self.difference.significant and self.difference.value < 0

    @property
    def report(self) -> str:
        """The comparison as text of several lines."""
        now, difference = self.now, self.difference
        verdict = "WORSE than its record" if self.is_worse else "not shown to be worse than its record"
        interval = f"95 % interval {difference.low:+.2f} to {difference.high:+.2f}, p = {difference.p:.2g}"
        lines = [
            f"{self.folder} ({self.method}): {verdict}",
            f"  held-out questions: {now.n} in {now.groups} groups",
            f"  right: recorded {self.recorded.formatted}, now {now.formatted}",
            f"  difference: {difference.value:+.2f} ({interval})",
            f"  the loss of {self.detectable} or more right answers in different groups would fail",
            f"  spent: {dollars(self.usd)}, {self.tokens:,} tokens",
        ]
        lines += [f"  changed since learning: {change}" for change in self.pool_changes]
        lines += [f"  {_describe(change)}" for change in self.changes[:LISTED_CHANGES]]
        if len(self.changes) > LISTED_CHANGES:
            lines.append(f"  and {len(self.changes) - LISTED_CHANGES} more")
        return "\n".join(lines)


def _describe(change: AnswerChange) -> str:
    kind = "lost" if change.score < change.recorded else "gained"
    answer = "no answer in the reply" if change.answer is None else f"answer {change.answer!r}"
    outcome = f"no reply: {change.error}" if change.error else answer
    question = truncate_middle(" ".join(change.question.split()), QUESTION_CHARS)
    return f"{kind} {change.id} ({change.recorded:g} -> {change.score:g}): {question!r}, {outcome}"


async def compare_with_record(
    folder: str | Path,
    task: Task | str | Path,
    *,
    pool: WorkerPool | None = None,
    planner: Planner | Model | str | None = None,
    limits: Limits | None = None,
    concurrency: int = 4,
) -> RecordComparison:
    """Runs a learned conductor on the held-out questions of its record, and compares the scores.

    Nothing is read from the folder's cache of replies, and nothing is written to the folder.

    Args:
        folder: the folder that `rl-conductor learn` created, with its `experience.jsonl`.
        task: the questions that it was learned from: a task, its name, or a file of questions.
        pool: the workers; by default those of the pool file that it was learned for.
        planner: the planner, its model, or a `provider:model` name; by default that of the pool file.
        limits: hard caps of the whole comparison.
        concurrency: maximum questions at the same time.

    Raises:
        ConfigError: the folder has no record of these questions, or the record has too few right answers for any loss
            to be significant.
        LimitError: the limits did not suffice for all questions.
    """
    folder = Path(folder)
    async with aclosing(Conductor.load(folder, pool=pool, planner=planner)) as conductor:
        content = read_conductor_file(folder)
        heldout = held_out_questions(folder, task if isinstance(task, Task) else load_questions(task))
        recorded = _recorded_rows(folder, content, heldout.task.samples)
        recorded_scores = [row.score for row in recorded]
        groups = [heldout.groups[sample.id] for sample in heldout.task.samples]
        detectable = _detectable_loss(recorded_scores, groups)
        rows = await _run(conductor, heldout.task, Limits.or_default(limits, Limits()), concurrency)
    scores = [row.score for row in rows]
    return RecordComparison(
        folder=str(folder),
        method=content.method,
        recorded=estimate(recorded_scores, groups),
        now=estimate(scores, groups),
        difference=mean_difference(scores, recorded_scores, groups),
        detectable=detectable,
        changes=_changes(recorded, rows),
        pool_changes=tuple(list_pool_changes(content, conductor.pool)),
        usd=sum((row.spending.usd for row in rows), Decimal(0)),
        tokens=sum(row.spending.tokens for row in rows),
    )


class HeldOutQuestions(NamedTuple):
    """The held-out questions of a learned conductor."""

    task: Task
    """These questions only, in the order of the record."""
    groups: Mapping[str, str]
    """Group by sample id, as when it was learned; groups are independent of each other."""


def held_out_questions(folder: str | Path, task: Task) -> HeldOutQuestions:
    """Returns the held-out questions of a learned conductor.

    Raises:
        ConfigError: no question was held out, or one is missing in the task.
    """
    folder = Path(folder)
    if not (folder / OPENING_FILE).is_file():
        raise ConfigError(
            f"{str(folder)!r} has no {OPENING_FILE}: nothing was evaluated on held-out questions when it was learned, "
            "so there is no record to compare with; see its report.html"
        )
    by_id = {sample.id: sample for sample in task.samples}
    opening = read_value(folder / OPENING_FILE, HeldOutOpening)
    names = opening.samples
    missing = [name for name in names if name not in by_id]
    if missing or not names:
        raise ConfigError(
            f"task {task.name!r} lacks {len(missing)} of {len(names)} held-out questions of {str(folder)!r}, such as "
            f"{missing[:1]}; give the questions that it was learned from"
        )
    groups = dict(zip(names, opening.groups, strict=True)) if opening.groups else name_groups(task.samples)
    return HeldOutQuestions(Task(task.name, tuple(by_id[name] for name in names), task.scorer), groups)


def _recorded_rows(folder: Path, content: ConductorFile, samples: Sequence[Sample]) -> list[ExperienceRow]:
    """Returns the row of the learned system for each question.

    Raises:
        ConfigError: a row is missing.
    """
    if not (folder / EXPERIENCE_FILE).is_file():
        raise ConfigError(
            f"{str(folder)!r} has no {EXPERIENCE_FILE} with the recorded scores; copy it from where it was learned"
        )
    selector = None if content.selector is None else read_value(content.selector, WorkflowSelector)
    rows = [row for row in Experience(folder / EXPERIENCE_FILE).rows(samples) if row.source == "learn"]
    recorded = []
    for sample in samples:
        row = _last_row(rows, sample, content.method, selector)
        if row is None:
            raise ConfigError(
                f"the record of {str(folder)!r} has no score for question {sample.id!r}: it was another question then, "
                "or a cap ended the evaluation early; run rl-conductor learn again"
            )
        recorded.append(row)
    return recorded


def _last_row(
    rows: Sequence[ExperienceRow], sample: Sample, method: str, selector: WorkflowSelector | None
) -> ExperienceRow | None:
    """Returns the newest row of the learned system on a question."""
    system, workflow = method, None
    if selector is not None:
        system, workflow = "workflow", selector.select(Request.user(sample.question))
    matching = [
        row
        for row in rows
        if row.question == sample.question and row.system == system and (selector is None or row.workflow == workflow)
    ]
    same_id = [row for row in matching if row.sample == sample.id]  # a judged question may have several answers
    return next(reversed(same_id or matching), None)


def _detectable_loss(recorded: Sequence[float], groups: Sequence[str]) -> int:
    """Counts how many right answers, each of another group where possible, are a significant loss.

    Raises:
        ConfigError: not even the loss of all would be.
    """
    by_group: dict[str, list[int]] = defaultdict(list)
    for number, (score, group) in enumerate(zip(recorded, groups, strict=True)):
        if score > 0:
            by_group[group].append(number)
    order = [number for number in chain.from_iterable(zip_longest(*by_group.values())) if number is not None]
    now = list(recorded)
    for count, number in enumerate(order, 1):
        now[number] = 0.0
        if mean_difference(now, recorded, groups).significant:
            return count
    raise ConfigError(
        f"the record has {len(order)} right answers in {len(by_group)} groups of questions: not even the loss of all "
        "would be significant; learn from more questions"
    )


async def _run(conductor: Conductor, task: Task, limits: Limits, concurrency: int) -> list[ExperienceRow]:
    """Runs the conductor on all questions.

    Raises:
        LimitError: the limits did not suffice.
    """
    budget = LearningBudget(limits, NOTHING)
    with TemporaryDirectory() as folder:
        runner = Runner(
            task=task,
            conductor=conductor,
            experience=Experience(Path(folder) / EXPERIENCE_FILE),
            workers={},
            concurrency=concurrency,
            budget=budget.stage(1.0),
        )
        rows = await runner.run_conductor(task.samples, "now", conductor)
    if len(rows) < len(task.samples):
        raise _limit_error(budget, f"{len(rows)} of {len(task.samples)}")
    return rows


def _limit_error(budget: LearningBudget, completed: str) -> LimitError:
    """Builds the error of limits that ended a check; it names the one that did."""
    name = budget.tightest_cap
    cap, amount = getattr(budget.limits, name), getattr(budget.spending, name)
    return LimitError(
        f"limits.{name}={cap:g} ended the check after {completed} held-out questions; raise it",
        limit=name,
        needed=amount,
        remaining=max(float(cap) - amount, 0.0),
    )


def _changes(recorded: Sequence[ExperienceRow], rows: Sequence[ExperienceRow]) -> tuple[AnswerChange, ...]:
    """Lists the questions with another score, the lost ones first."""
    changes = [
        AnswerChange(
            id=now.sample,
            question=now.question,
            recorded=before.score,
            score=now.score,
            answer=now.answer,
            error=now.error,
        )
        for before, now in zip(recorded, rows, strict=True)
        if now.score != before.score
    ]
    return tuple(sorted(changes, key=lambda change: change.score - change.recorded))
