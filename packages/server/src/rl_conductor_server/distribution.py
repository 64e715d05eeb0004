"""`Distribution`: how values spread, in three numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles

from rl_conductor.types import Value


class Distribution(Value):
    """Mean, median and 95th percentile."""

    mean: float
    p50: float
    p95: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Summarizes one or more values."""
        ranks = quantiles(values, n=20, method="inclusive") if len(values) > 1 else [values[0]] * 19
        return cls(mean=sum(values) / len(values), p50=ranks[9], p95=ranks[18])
