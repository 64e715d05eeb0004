"""Standard errors, confidence intervals and paired tests over questions. Pure functions.

Questions are the sampling unit. Repetitions of a question are not independent, so they count as one mean (clustered
standard errors).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, norm, permutation_test, sem

from rl_conductor._internal.confidence import CONFIDENCE_LEVEL
from rl_conductor.types import Value

RESAMPLES = 10_000
TAIL = (1 - CONFIDENCE_LEVEL) / 2

Floats = NDArray[np.float64]


class Estimate(Value):
    """A mean of values from 0 to 1 with its standard error and 95 % interval."""

    value: float
    error: float | None
    """Standard error; `None` for a single question."""
    low: float
    high: float
    n: int
    """Number of questions."""

    @property
    def formatted(self) -> str:
        """The mean, followed by its standard error if there is one."""
        return f"{self.value:.2f}" if self.error is None else f"{self.value:.2f} ± {self.error:.2f}"


def estimate(question_means: Sequence[float]) -> Estimate:
    """Estimates the mean over questions, each from 0 to 1.

    The interval is Wilson's if every value is 0 or 1, else that of `adjusted_wald_interval`.

    Raises:
        ValueError: there are no questions.
    """
    values = np.asarray(question_means, dtype=float)
    if not values.size:
        raise ValueError("there are no questions to take a mean of")
    error = float(sem(values)) if values.size > 1 else None
    if set(values) <= {0.0, 1.0}:
        wilson = binomtest(int(values.sum()), values.size).proportion_ci(CONFIDENCE_LEVEL, method="wilson")
        low, high = float(wilson.low), float(wilson.high)
    else:
        low, high = adjusted_wald_interval(values, lower=0)
    return Estimate(value=float(values.mean()), error=error, low=low, high=high, n=values.size)


def adjusted_wald_interval(values: Floats, *, lower: float) -> tuple[float, float]:
    """Computes the normal interval of a mean of values from `lower` to 1, after adding one value at each bound.

    The added values give the interval a width where all values are equal. For gaps of -1, 0 and 1 it is that of Bonett
    and Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on paired data" (2012).
    """
    adjusted = np.append(values, (lower, 1.0))
    half_width = norm.ppf(1 - TAIL) * adjusted.std() / np.sqrt(adjusted.size)
    return max(lower, float(adjusted.mean() - half_width)), min(1.0, float(adjusted.mean() + half_width))


class Difference(Value):
    """The mean difference of two systems on the same questions; positive where the first is better."""

    value: float
    low: float
    high: float
    """Bounds of the 95 % interval."""
    p: float
    """p-value of McNemar's exact test, or of `sign_flip_test` where repetitions disagree."""
    n: int
    """Number of questions."""

    @property
    def significant(self) -> bool:
        """Whether both the test and the interval exclude zero."""
        return self.p < 1 - CONFIDENCE_LEVEL and (self.low > 0 or self.high < 0)


def mean_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Compares the means of two systems on the same questions in the same order; there must be at least one."""
    gaps = np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)
    low, high = adjusted_wald_interval(gaps, lower=-1)
    return Difference(value=float(gaps.mean()), low=low, high=high, p=_p_value(gaps[gaps != 0]), n=gaps.size)


def _p_value(nonzero_gaps: Floats) -> float:
    if nonzero_gaps.size < 2:  # either sign is equally likely
        return 1.0
    if set(nonzero_gaps) <= {-1.0, 1.0}:
        return float(binomtest(int((nonzero_gaps > 0).sum()), nonzero_gaps.size).pvalue)
    return sign_flip_test(nonzero_gaps)


def sign_flip_test(gaps: Floats) -> float:
    """Returns the p-value of a permutation test that flips the signs of `gaps`.

    It is exact up to `RESAMPLES` sign patterns, that is 13 gaps. Beyond that the patterns are drawn at random and the
    observed one is counted with them, which makes p slightly too large rather than too small.
    """
    result = permutation_test(
        (gaps,), np.mean, permutation_type="samples", n_resamples=RESAMPLES, rng=np.random.default_rng(0)
    )
    return float(result.pvalue)


def paired_difference(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Difference | None:
    """Compares two systems on the questions where both have a value; `None` without such a question."""
    pairs = [(our, their) for our, their in zip(ours, theirs, strict=True) if our is not None and their is not None]
    return mean_difference([our for our, _ in pairs], [their for _, their in pairs]) if pairs else None


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """Adjusts the p-values for multiple tests; Holm, "A simple sequentially rejective multiple test procedure"."""
    p_values = np.array([difference.p for difference in differences])
    order = np.argsort(p_values, kind="stable")
    scaled = np.minimum(1, p_values[order] * np.arange(p_values.size, 0, -1))
    p_values[order] = np.maximum.accumulate(scaled)
    return [
        difference.model_copy(update={"p": p}) for difference, p in zip(differences, p_values.tolist(), strict=True)
    ]


def bootstrap_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> tuple[float, float, float]:
    """Returns the ratio of two means over the same questions, and the bounds of its bootstrap 95 % interval.

    Resamples whose denominator is not positive have no ratio and are left out, which scipy's bootstrap can't do.
    """
    draws = np.random.default_rng(0).integers(len(numerator), size=(RESAMPLES, len(numerator)))
    above, below = (np.asarray(values, dtype=float)[draws].mean(axis=1) for values in (numerator, denominator))
    low, high = np.quantile(above[below > 0] / below[below > 0], (TAIL, 1 - TAIL))
    return float(np.mean(numerator) / np.mean(denominator)), float(low), float(high)
