"""How sure a share or a mean is, from counts and amounts alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist, mean, stdev

from rl_conductor.types import Value

LEVEL = 0.95
"""Of the intervals that are reported."""


class Interval(Value):
    """A share or a mean, and the interval that holds the true one with the level's probability."""

    value: float
    low: float
    high: float
    n: int


def share(some: int, of: int, *, level: float = LEVEL) -> Interval:
    """`some` of so many, with Wilson's interval; of none, nothing is known.

    Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
    """
    if not of:
        return Interval(value=0.0, low=0.0, high=1.0, n=0)
    z = _deviations(level)
    p, spread = some / of, z * z / of
    middle = (p + spread / 2) / (1 + spread)
    half = z * ((p * (1 - p) + spread / 4) / of) ** 0.5 / (1 + spread)
    return Interval(value=p, low=min(p, max(0.0, middle - half)), high=max(p, min(1.0, middle + half)), n=of)


def average(amounts: Sequence[float], *, level: float = LEVEL) -> Interval | None:
    """The mean, with the normal interval, which wants some 30 amounts or more; `None` of fewer than two."""
    if len(amounts) < 2:
        return None
    middle = mean(amounts)
    half = _deviations(level) * stdev(amounts) / len(amounts) ** 0.5
    return Interval(value=middle, low=middle - half, high=middle + half, n=len(amounts))


def _deviations(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)
