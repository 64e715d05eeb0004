"""Metrics of a training step. Pure.

A rising reward may only mean that more plans are valid. So the metrics separate the share of valid plans from the share
of right answers *given* a valid plan, which is the mean score where scores are partial.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from pydantic import Field

from rl_conductor.types import Value, total
from rl_conductor_training.train.rollouts.scoring import ScoredPlan

METRIC_PREFIX = "plans/"
"""Tells these metrics from those of TRL in its log."""
Group = Sequence[ScoredPlan]
"""The plans for one question."""
RoundPair = tuple[ScoredPlan, ScoredPlan | None]
"""A plan and the plan of the second round; `None` where the first has no answer."""


class Reference(Value):
    """Scores of other systems on a sample, from a benchmark."""

    id: str
    single: float = Field(ge=0, le=1)
    """Score of the worker that is best on average."""
    oracle: float = Field(ge=0, le=1)
    """Score of the best workflow found by search."""


def step_metrics(
    groups: Sequence[Group],
    rewards: Sequence[Sequence[float | None]],
    references: Sequence[Reference | None],
    *,
    round_pairs: Sequence[RoundPair] = (),
) -> dict[str, float]:
    """Computes the metrics of one step, by name; those that are undefined for these plans are left out.

    Args:
        groups: the plans of the first round.
        rewards: the rewards of each group, of both rounds.
        references: for each group, the reference scores of its question.
        round_pairs: the plans that were given a second round, with its plans.
    """
    all_plans = [plan for group in groups for plan in group]
    unmasked = [plan for plan in all_plans if not plan.masked]
    valid = [plan for plan in unmasked if plan.valid]
    usage = total(plan.usage for plan in (*all_plans, *(second for _, second in round_pairs)) if plan)
    workflows = [plan.workflow for plan in all_plans if plan.workflow is not None]
    metrics = {
        "plans": len(all_plans),
        "scored": len(valid),
        "valid": _mean([plan.valid for plan in all_plans]),
        "right": _mean([plan.score or 0.0 for plan in unmasked]),
        "right_if_valid": _mean([plan.score or 0.0 for plan in valid]),
        "masked": _mean([plan.masked for plan in all_plans]),
        "no_advantage": _mean([_all_equal(group) for group in rewards]),
        "steps": _mean([len(workflow.steps) for workflow in workflows]),
        "steps_bits": entropy_bits(len(workflow.steps) for workflow in workflows),
        "workers_bits": entropy_bits(step.worker for workflow in workflows for step in workflow.steps),
        "usd": math.nan if usage.unpriced_calls else float(usage.cost),
        "tokens": usage.input_tokens + usage.output_tokens,
        "calls": usage.calls,
        "cached": usage.cached_calls / usage.calls if usage.calls else math.nan,
        **_regrets(groups, references),
        **_second_round_metrics(round_pairs),
    }
    return {name: float(value) for name, value in metrics.items() if not math.isnan(value)}


def entropy_bits(items: Iterable[Hashable]) -> float:
    """Computes the entropy of the items' frequencies in bits: 0 when all are equal."""
    counts = Counter(items).values()
    size = sum(counts)
    return sum(count / size * math.log2(size / count) for count in counts) if size else math.nan


def _regrets(groups: Sequence[Group], references: Sequence[Reference | None]) -> dict[str, float]:
    """Computes how far the mean score is below the references', on the questions that have them."""
    pairs = [
        (reference, _mean([plan.score or 0.0 for plan in group if not plan.masked]))
        for group, reference in zip(groups, references, strict=True)
        if reference is not None
    ]
    pairs = [(reference, score) for reference, score in pairs if not math.isnan(score)]
    return {
        "regret_single": _mean([reference.single - score for reference, score in pairs]),
        "regret_oracle": _mean([reference.oracle - score for reference, score in pairs]),
    }


def _second_round_metrics(round_pairs: Sequence[RoundPair]) -> dict[str, float]:
    """Computes how second rounds changed answers, where the plan could be parsed and no call failed."""
    unmasked = [(first, second) for first, second in round_pairs if second is not None and not second.masked]
    valid = [(first, second) for first, second in unmasked if second.valid]
    return {
        "second_valid": _mean([second.valid for _, second in unmasked]),
        "kept": _mean([second.accepts for _, second in valid]),
        "repaired": _mean([second.right for first, second in valid if not first.right]),
        "spoiled": _mean([not second.right for first, second in valid if first.right]),
    }


def _all_equal(rewards: Sequence[float | None]) -> bool:
    return len({reward for reward in rewards if reward is not None}) < 2


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
