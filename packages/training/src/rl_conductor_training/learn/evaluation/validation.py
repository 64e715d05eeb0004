"""Runs workflows and learners on the validation questions, so that only the promising learners are proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.evaluation.comparison import BASELINES
from rl_conductor_training.learn.evaluation.proof import run_learned
from rl_conductor_training.learn.experience import ExperienceRow, cost_order
from rl_conductor_training.learn.learn_run import LearnRun
from rl_conductor_training.learn.learners.base import Learner, Lessons, SearchingLearner
from rl_conductor_training.learn.record import ValidationResult
from rl_conductor_training.learn.search.explore import score_table
from rl_conductor_training.learn.search.plan import SearchPlan
from rl_conductor_training.tasks import Sample


async def validate_workflows(
    run: LearnRun, singles: Sequence[Workflow], portfolio: Sequence[Workflow], plan: SearchPlan
) -> tuple[Lessons, bool]:
    """Runs single workers and the selected workflows on the validation questions.

    Returns the scores on the training and validation questions on which all of them ran, and whether these are all.

    Raises:
        LimitError: the caps did not even suffice to compare the single workers.
    """
    run.begin("validating", plan.validating)
    workflows = list(dict.fromkeys([*singles, *portfolio]))
    samples = [*run.questions[: plan.rounds[-1].questions], *run.data.validation.samples]
    await run.runner.run_workflows((sample, workflow) for sample in samples for workflow in workflows)
    is_complete = not run.runner.is_exhausted
    if not is_complete:
        run.note_cap("validation", "only questions on which all workflows ran are used")
    table = score_table(run.runner, samples)
    complete = [sample for sample in samples if all((workflow, sample.id) in table.rows for workflow in workflows)]
    if not complete:
        raise run.caps_too_low("to compare the workers on a single question", plan.thorough)
    return Lessons(score_table(run.runner, complete, with_production=True), portfolio, singles), is_complete


async def validate_learners(
    run: LearnRun, lessons: Lessons, plan: SearchPlan
) -> tuple[list[ValidationResult], list[Learner]]:
    """Compares the learners on the validation questions, and returns those that are worth a proof.

    These are the baselines and the best of the others, unless it answers fewer questions than the best baseline, since
    it can't be recommended then. A learner that the budget ended early has no result.
    """
    samples, ids = lessons.table.samples, {sample.id for sample in run.data.validation.samples}
    training = [sample for sample in samples if sample.id not in ids]
    table = score_table(run.runner, training or samples, with_production=True)
    for learner in run.learners:
        learner.fit(replace(lessons, table=table))
    if not (validation := [sample for sample in samples if sample.id in ids]):
        return [], baselines(run)
    if plan.tries_planners:
        await _search(run, training or samples, validation, plan.searching)
    run.begin("comparing the learners", plan.choosing)
    rows: dict[str, Mapping[str, ExperienceRow]] = {}
    for learner in run.learners:
        conductor = learner.apply(run.runner.conductor)
        if plan.tries_planners or conductor.config.selector is not None:
            learner_rows = await run_learned(run.runner, learner.name, conductor, validation)
            if len(learner_rows) == len(validation):
                rows[learner.name] = learner_rows
    if run.runner.is_exhausted:
        run.note_cap("validation", "learners without a result are not evaluated on the held-out questions")
    names = {*BASELINES, _find_best(rows)}
    results = [_summarize(name, rows[name], is_chosen=name in names) for name in rows]
    return results, [learner for learner in run.learners if learner.name in names]


def baselines(run: LearnRun) -> list[Learner]:
    """Returns the learners that are proved without a comparison."""
    return [learner for learner in run.learners if learner.name in BASELINES]


async def _search(run: LearnRun, train: Sequence[Sample], validation: Sequence[Sample], share: float) -> None:
    """Lets those learners search that need runs of their own."""
    for learner in run.learners:
        if isinstance(learner, SearchingLearner):
            run.begin(f"searching for {learner.name}", share)
            await learner.search(run.runner, train, validation)
            if run.runner.is_exhausted:
                run.note_cap(f"the search for {learner.name}", "it used what was found until then")


def _find_best(rows: Mapping[str, Mapping[str, ExperienceRow]]) -> str | None:
    """Returns the best learner besides the baselines; `None` if each answers fewer questions than one of these."""
    baseline = max((_mean(rows[name]) for name in rows if name in BASELINES), default=0.0)
    others = [name for name in rows if name not in BASELINES and _mean(rows[name]) >= baseline]
    return min(others, key=lambda name: _order(rows[name]), default=None)


def _mean(rows: Mapping[str, ExperienceRow]) -> float:
    return sum(row.score for row in rows.values()) / len(rows)


def _order(rows: Mapping[str, ExperienceRow]) -> tuple[float, tuple[bool, Decimal, float], float]:
    """Orders learners: right answers, then dollars, tokens and seconds."""
    values = rows.values()
    usd, unpriced_calls = sum((row.usd for row in values), Decimal(0)), sum(row.unpriced_calls for row in values)
    order = cost_order(usd, sum(row.tokens for row in values), unpriced_calls)
    return -_mean(rows), order, sum(row.seconds for row in values)


def _summarize(name: str, rows: Mapping[str, ExperienceRow], *, is_chosen: bool) -> ValidationResult:
    count = len(rows)
    return ValidationResult(
        name=name,
        right=_mean(rows),
        usd=sum((row.usd for row in rows.values()), Decimal(0)) / count,
        unpriced_calls=sum(row.unpriced_calls for row in rows.values()),
        tokens=sum(row.tokens for row in rows.values()) / count,
        seconds=sum(row.seconds for row in rows.values()) / count,
        n=count,
        is_chosen=is_chosen,
    )
