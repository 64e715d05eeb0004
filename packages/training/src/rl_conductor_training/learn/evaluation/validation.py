"""Compares the learners on the validation questions, so that only the promising ones are proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from rl_conductor_training.learn.evaluation.comparison import BASELINES
from rl_conductor_training.learn.evaluation.proof import run_learner
from rl_conductor_training.learn.experience import ExperienceRow, cost_order
from rl_conductor_training.learn.learners.base import Learner
from rl_conductor_training.learn.record import ValidationResult
from rl_conductor_training.learn.runner import Runner
from rl_conductor_training.tasks import Sample


async def validate_learners(
    runner: Runner, learners: Sequence[Learner], samples: Sequence[Sample], *, tries_planners: bool
) -> list[ValidationResult]:
    """Runs each learner on the questions, and chooses the baselines and the best of the others.

    A learner that answers fewer questions than the best baseline is not chosen, since it can't be recommended. One that
    the budget ended early has no result.

    Args:
        runner: runs the learners within the budget.
        learners: fitted on training questions.
        samples: the validation questions.
        tries_planners: whether learners that call a planner are run at all.
    """
    rows: dict[str, Mapping[str, ExperienceRow]] = {}
    for learner in learners:
        if tries_planners or learner.apply(runner.conductor).config.selector is not None:
            results = await run_learner(runner, learner, samples)
            if len(results) == len(samples):
                rows[learner.name] = results
    baseline = max((_mean(rows[name]) for name in rows if name in BASELINES), default=0.0)
    others = [name for name in rows if name not in BASELINES and _mean(rows[name]) >= baseline]
    best = min(others, key=lambda name: _order(rows[name]), default=None)
    return [
        _summarize(learner.name, rows[learner.name], is_chosen=learner.name in (*BASELINES, best))
        for learner in learners
        if learner.name in rows
    ]


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
