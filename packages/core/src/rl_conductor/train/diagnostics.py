"""What a step of training tells of the policy. Pure.

A rising reward may mean no more than that plans have become readable. So every share is told apart: how many plans
are valid, and how many answers are right *given* a valid plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from pydantic import Field

from rl_conductor.train.outcomes import Outcome
from rl_conductor.types import Value, total

Group = Sequence[Outcome]
"""The plans for one question."""
Judged = tuple[Outcome, Outcome | None]
"""What came of a plan, and of the plan of the second round; `None` where there was no answer to judge."""


class Reference(Value):
    """How well others do on a sample, from a benchmark."""

    id: str
    single: float = Field(ge=0, le=1)
    """Score of the worker that is best on average."""
    oracle: float = Field(ge=0, le=1)
    """Score of the best workflow found by search."""


def diagnostics(
    groups: Sequence[Group],
    rewards: Sequence[Sequence[float | None]],
    references: Sequence[Reference | None],
    *,
    judged: Sequence[Judged] = (),
) -> dict[str, float]:
    """The numbers of one step, by name; what can't be known of these plans is left out.

    Args:
        groups: what came of the plans of the first round.
        rewards: of the plans of each group, of both rounds.
        references: for each group, what is known of its question.
        judged: what came of the plans that were given a second round.
    """
    all_outcomes = [outcome for group in groups for outcome in group]
    known = [outcome for outcome in all_outcomes if not outcome.masked]
    valid = [outcome for outcome in known if outcome.valid]
    used = total(outcome.usage for outcome in (*all_outcomes, *(second for _, second in judged)) if outcome)
    plans = [outcome.workflow for outcome in all_outcomes if outcome.workflow is not None]
    told = {
        "plans": len(all_outcomes),
        "scored": len(valid),
        "valid": _mean([outcome.valid for outcome in all_outcomes]),
        "right": _mean([outcome.right for outcome in known]),
        "right_if_valid": _mean([outcome.right for outcome in valid]),
        "masked": _mean([outcome.masked for outcome in all_outcomes]),
        "no_advantage": _mean([_all_alike(one) for one in rewards]),
        "steps": _mean([len(plan.steps) for plan in plans]),
        "steps_bits": bits(len(plan.steps) for plan in plans),
        "workers_bits": bits(step.worker for plan in plans for step in plan.steps),
        "usd": float(used.cost),
        "tokens": used.input_tokens + used.output_tokens,
        "calls": used.calls,
        "cached": used.cached_calls / used.calls if used.calls else math.nan,
        **_regrets(groups, references),
        **_transitions(judged),
    }
    return {name: float(value) for name, value in told.items() if not math.isnan(value)}


def bits(things: Iterable[object]) -> float:
    """Entropy of how often each thing comes, in bits: 0 when it is always the same one."""
    counts = Counter(things).values()
    whole = sum(counts)
    return sum(count / whole * math.log2(whole / count) for count in counts) if whole else math.nan


def _regrets(groups: Sequence[Group], references: Sequence[Reference | None]) -> dict[str, float]:
    """How far the mean score is behind others', on the questions where theirs is known."""
    pairs = [
        (reference, _mean([outcome.score or 0.0 for outcome in group if not outcome.masked]))
        for group, reference in zip(groups, references, strict=True)
        if reference is not None
    ]
    pairs = [(reference, score) for reference, score in pairs if not math.isnan(score)]
    return {
        "regret_single": _mean([reference.single - score for reference, score in pairs]),
        "regret_oracle": _mean([reference.oracle - score for reference, score in pairs]),
    }


def _transitions(judged: Sequence[Judged]) -> dict[str, float]:
    """What became in the second round of answers of the first one, as far as plans could be read and no call failed."""
    known = [(first, second) for first, second in judged if second is not None and not second.masked]
    valid = [(first, second) for first, second in known if second.valid]
    return {
        "second_valid": _mean([second.valid for _, second in known]),
        "kept": _mean([second.accepts for _, second in valid]),
        "repaired": _mean([second.right for first, second in valid if not first.right]),
        "spoiled": _mean([not second.right for first, second in valid if first.right]),
    }


def _all_alike(rewards: Sequence[float | None]) -> bool:
    return len({reward for reward in rewards if reward is not None}) < 2


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
