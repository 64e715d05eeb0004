"""The verdict on a run: compares its first steps with its last ones. Pure.

Questions differ from step to step, so a change is compared with the variance between steps, by Welch's t test. The
proof of an improvement is the benchmark on held-out questions, not this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Literal, Self

from scipy.special import stdtrit

from rl_conductor.types import Value

CONFIDENCE = 0.975
"""One-sided confidence level: without any real change, one run in forty is reported as a gain."""
MIN_STEPS = 5
"""Minimum steps per window; fewer don't show the variance between steps."""


class ShareEstimate(Value):
    """A share of the plans of a few steps, with its standard error."""

    value: float
    """The mean over the steps."""
    error: float
    """Its standard error over the steps, but at least the sampling error of this number of plans."""
    steps: int
    """Number of steps that have this metric."""

    @classmethod
    def from_steps(cls, shares: Sequence[float], plans: Sequence[float]) -> Self | None:
        """Estimates the mean of `shares`, each measured on the number of `plans` at its position; `None` of none."""
        if not shares:
            return None
        sampling_variance = _sampling_variance(shares, plans)
        step_variance = variance(shares) / len(shares) if len(shares) > 1 else sampling_variance
        error = math.sqrt(max(step_variance, sampling_variance))
        return cls(value=fmean(shares), error=error, steps=len(shares))


class StepWindow(Value):
    """A few consecutive steps of a run; `None` for metrics that they lack."""

    steps: int
    valid: ShareEstimate | None
    right_if_valid: ShareEstimate | None
    """Over the steps that had a valid plan."""

    @classmethod
    def from_steps(cls, steps: Sequence[Mapping[str, float]]) -> Self:
        """Aggregates the metrics of these steps."""
        return cls(
            steps=len(steps),
            valid=_estimate(steps, "valid", of="plans"),
            right_if_valid=_estimate(steps, "right_if_valid", of="scored"),
        )


Finding = Literal["gain", "worse", "format only", "no gain", "too short"]


class Verdict(Value):
    """The change from the first steps of a run to its last."""

    first: StepWindow
    last: StepWindow
    finding: Finding

    @property
    def text(self) -> str:
        """One sentence; the number after `±` is the standard error of the change."""
        first, last = self.first, self.last
        return (
            f"{FINDINGS[self.finding]}: right given a valid plan {_format(first.right_if_valid, last.right_if_valid)},"
            f" valid {_format(first.valid, last.valid)}, first {first.steps} against last {last.steps} steps"
        )


FINDINGS: dict[Finding, str] = {
    "gain": "Plans became better",
    "worse": "Plans became worse",
    "format only": "The gain is format only: more plans are valid, but valid ones are not shown to be better",
    "no gain": "No gain",
    "too short": "Too few steps to tell",
}


def compute_verdict(steps: Sequence[Mapping[str, float]]) -> Verdict | None:
    """Compares the metrics of a run's first and last steps; `None` without any step.

    Each window is a quarter of the steps; in a short run `MIN_STEPS` steps, or half of them.
    """
    if not steps:
        return None
    window = max(1, len(steps) // 4, min(MIN_STEPS, len(steps) // 2))
    first, last = StepWindow.from_steps(steps[:window]), StepWindow.from_steps(steps[-window:])
    return Verdict(first=first, last=last, finding=_classify(first, last))


def _estimate(steps: Sequence[Mapping[str, float]], name: str, *, of: str) -> ShareEstimate | None:
    measured = [step for step in steps if name in step and of in step]
    return ShareEstimate.from_steps([step[name] for step in measured], [step[of] for step in measured])


def _classify(first: StepWindow, last: StepWindow) -> Finding:
    right = _change(first.right_if_valid, last.right_if_valid)
    valid = _change(first.valid, last.valid)
    if "fell" in {right, valid}:
        return "worse"
    if right == "rose":
        return "gain"
    if valid == "rose":
        return "format only"
    return "too short" if right is None else "no gain"


def _change(before: ShareEstimate | None, after: ShareEstimate | None) -> Literal["rose", "fell", "stayed"] | None:
    """Classifies a change by its significance; `None` where too few steps have the metric."""
    if before is None or after is None or min(before.steps, after.steps) < MIN_STEPS:
        return None
    critical = stdtrit(_degrees_of_freedom(before, after), CONFIDENCE) * math.hypot(before.error, after.error)
    if abs(after.value - before.value) <= critical:
        return "stayed"
    return "rose" if after.value > before.value else "fell"


def _degrees_of_freedom(before: ShareEstimate, after: ShareEstimate) -> float:
    """Welch, "The generalization of 'Student's' problem" (1947)."""
    estimates = (before, after)
    variances = [estimate.error**2 for estimate in estimates]
    terms = (value**2 / (estimate.steps - 1) for value, estimate in zip(variances, estimates, strict=True))
    return sum(variances) ** 2 / sum(terms)


def _sampling_variance(shares: Sequence[float], plans: Sequence[float]) -> float:
    """Computes the variance of the mean of `shares` if all plans had the same probability of being right.

    That probability has Laplace's correction, so that the variance is not 0 when all of ten plans were right.
    """
    right = sum(share * count for share, count in zip(shares, plans, strict=True))
    probability = (right + 1) / (sum(plans) + 2)
    return probability * (1 - probability) * sum(1 / count for count in plans) / len(shares) ** 2


def _format(before: ShareEstimate | None, after: ShareEstimate | None) -> str:
    if before is None or after is None:
        return f"{_percent(before)} → {_percent(after)}"
    return f"{_percent(before)} → {_percent(after)} (± {math.hypot(before.error, after.error):.1%})"


def _percent(share: ShareEstimate | None) -> str:
    return "unknown" if share is None else f"{share.value:.1%}"
