"""What a step of training tells of the policy, and what a whole run amounts to. Pure.

A rising reward may mean no more than that plans have become readable. So every share is told apart: how many plans
are valid, and how many answers are right *given* a valid plan; and a run's verdict rests on the latter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from rl_conductor.train.outcomes import Outcome
from rl_conductor.types import Value, total

Group = Sequence[Outcome]
"""The plans for one question."""
Judged = tuple[Outcome, Outcome | None]
"""What came of a plan, and of the plan of the second round; `None` where there was no answer to judge."""

SURE = 2.0
"""Standard errors beyond which a difference counts."""


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
        "replayed": used.replayed_calls / used.calls if used.calls else math.nan,
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


# ------------------------------------------------------------------------------------ the whole run


class Tally(Value):
    """What a few steps of a run amount to; `None` stands for what they can't tell."""

    steps: int
    valid: float | None
    right_if_valid: float | None
    """Over the steps that had a valid plan."""
    valid_error: float | None
    """Standard error over the steps; at least two have to know."""
    right_error: float | None


Finding = Literal["gain", "format only", "no gain", "too short"]


class Verdict(Value):
    """What training changed, from its first steps to its last."""

    first: Tally
    last: Tally
    finding: Finding

    @property
    def text(self) -> str:
        """In words."""
        error = _joint(self.first.right_error, self.last.right_error)
        doubt = "" if error is None else f" (± {error:.1%})"
        return (
            f"{FINDINGS[self.finding]}: right given a valid plan {_percent(self.first.right_if_valid)} →"
            f" {_percent(self.last.right_if_valid)}{doubt}, valid {_percent(self.first.valid)} →"
            f" {_percent(self.last.valid)}, first {self.first.steps} against last {self.last.steps} steps"
        )


FINDINGS: dict[Finding, str] = {
    "gain": "Plans became better",
    "format only": "The gain is format only: more plans are valid, but valid ones are not shown to be better",
    "no gain": "No gain",
    "too short": "Too short a run to tell",
}


def verdict(steps: Sequence[Mapping[str, float]]) -> Verdict | None:
    """What the `diagnostics` of a run's steps say; `None` without any step.

    The first quarter of the steps is held against the last. Questions differ from step to step, so the standard error
    is over steps; a proof is the benchmark on held-out questions, not this.
    """
    if not steps:
        return None
    window = max(1, len(steps) // 4)
    first, last = _tally(steps[:window]), _tally(steps[-window:])
    return Verdict(first=first, last=last, finding=_finding(first, last))


def _finding(first: Tally, last: Tally) -> Finding:
    better = _rose(first.right_if_valid, last.right_if_valid, _joint(first.right_error, last.right_error))
    if better:
        return "gain"
    if _rose(first.valid, last.valid, _joint(first.valid_error, last.valid_error)):
        return "format only"
    return "too short" if better is None else "no gain"


def _rose(before: float | None, after: float | None, error: float | None) -> bool | None:
    """Whether a share rose by more than chance lets it; `None` where that is not known."""
    return None if before is None or after is None or error is None else after - before > SURE * error


def _tally(steps: Sequence[Mapping[str, float]]) -> Tally:
    valid = [step["valid"] for step in steps if "valid" in step]
    right = [step["right_if_valid"] for step in steps if "right_if_valid" in step]
    return Tally(
        steps=len(steps),
        valid=_mean(valid) if valid else None,
        right_if_valid=_mean(right) if right else None,
        valid_error=_error(valid),
        right_error=_error(right),
    )


def _error(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    middle = _mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1) / len(values))


def _joint(one: float | None, other: float | None) -> float | None:
    """The standard error of a difference."""
    return None if one is None or other is None else math.hypot(one, other)


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"
