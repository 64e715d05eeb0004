"""Confidence intervals of proportions and means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist, mean, stdev

from rl_conductor.types import Value

CONFIDENCE_LEVEL = 0.95
"""The confidence level of reported intervals."""


class Interval(Value):
    """A proportion or a mean with its confidence interval."""

    value: float
    low: float
    high: float
    n: int


def wilson_interval(successes: int, trials: int, *, level: float = CONFIDENCE_LEVEL) -> Interval:
    """Returns the proportion of successes with its Wilson score interval; 0 to 1 when there are no trials.

    Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
    """
    if not trials:
        return Interval(value=0.0, low=0.0, high=1.0, n=0)
    z = _z_score(level)
    p, spread = successes / trials, z * z / trials
    middle = (p + spread / 2) / (1 + spread)
    half = z * ((p * (1 - p) + spread / 4) / trials) ** 0.5 / (1 + spread)
    return Interval(value=p, low=min(p, max(0.0, middle - half)), high=max(p, min(1.0, middle + half)), n=trials)


def mean_interval(values: Sequence[float], *, level: float = CONFIDENCE_LEVEL) -> Interval | None:
    """Returns the mean with its normal confidence interval; `None` for fewer than two values.

    The normal approximation needs about 30 values or more.
    """
    if len(values) < 2:
        return None
    middle = mean(values)
    half = _z_score(level) * stdev(values) / len(values) ** 0.5
    return Interval(value=middle, low=middle - half, high=middle + half, n=len(values))


def _z_score(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)
