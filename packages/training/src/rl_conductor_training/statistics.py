"""Standard errors, confidence intervals and paired tests over questions. Pure functions.

Questions are the sampling unit; repetitions of a question count as one mean. Questions of one group, such as those of
one template, are not independent, so errors and tests are clustered by group (Miller, "Adding error bars to evals",
arXiv 2411.00640, section 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rl_conductor._internal.formatting import counted
from rl_conductor.types import Value

CONFIDENCE_LEVEL = 0.95
"""The confidence level of reported intervals."""
RESAMPLES = 10_000
DRAWS_AT_ONCE = 1_000_000
"""Values drawn at the same time; all resamples of thousands of questions would take gigabytes."""
TAIL = (1 - CONFIDENCE_LEVEL) / 2

Floats = NDArray[np.float64]
Groups = Sequence[str]
"""The group of each question, in the order of the values."""


class Estimate(Value):
    """A mean over questions with its standard error and 95 % interval."""

    value: float
    error: float | None
    """Standard error, clustered by group; `None` for a single group."""
    low: float
    high: float
    n: int
    """Number of questions."""
    groups: int
    """Number of groups of questions; equal to `n` where all questions are independent."""

    @property
    def formatted(self) -> str:
        """The mean, followed by its standard error if there is one."""
        return f"{self.value:.2f}" if self.error is None else f"{self.value:.2f} ± {self.error:.2f}"

    @property
    def formatted_with_interval(self) -> str:
        """The mean, its standard error if there is one, and its interval."""
        return f"{self.formatted} ({self.low:.2f} to {self.high:.2f})"

    @property
    def size(self) -> str:
        """The number of questions, and of their groups where it is another one."""
        return format_size(self.n, self.groups)


def format_size(questions: int, groups: int) -> str:
    """Formats the number of questions, and of their groups where it is another one."""
    return f"n = {questions}" if questions == groups else f"n = {questions} in {counted(groups, 'group')}"


def estimate(question_means: Sequence[float], groups: Groups | None = None, *, lower: float = 0) -> Estimate:
    """Estimates the mean over questions, each from `lower` to 1: 0 for scores, -1 for differences of scores.

    The interval is Wilson's if every value is a score of 0 or 1 and no two questions are of one group, else that of
    `adjusted_wald_interval`.

    Raises:
        ValueError: there are no questions.
    """
    values = np.asarray(question_means, dtype=float)
    if not values.size:
        raise ValueError("there are no questions to take a mean of")
    clusters = _Clusters(values, groups)
    if lower == 0 and not clusters.clustered and set(values) <= {0.0, 1.0}:
        from scipy.stats import binomtest  # noqa: PLC0415 - takes a second

        wilson = binomtest(int(values.sum()), values.size).proportion_ci(CONFIDENCE_LEVEL, method="wilson")
        low, high = float(wilson.low), float(wilson.high)
    else:
        low, high = adjusted_wald_interval(values, groups, lower=lower)
    return Estimate(
        value=float(values.mean()),
        error=clusters.standard_error(),
        low=low,
        high=high,
        n=values.size,
        groups=clusters.sums.size,
    )


class _Clusters:
    """The sums and the sizes of groups of values."""

    def __init__(self, values: Floats, groups: Groups | None) -> None:
        names = np.arange(values.size) if groups is None else np.asarray(groups)
        _, index = np.unique(names, return_inverse=True)
        self.sums: Floats = np.bincount(index, weights=values).astype(float)
        self.sizes: Floats = np.bincount(index).astype(float)

    @property
    def clustered(self) -> bool:
        """Whether two values are of one group."""
        return bool((self.sizes > 1).any())

    def standard_error(self) -> float | None:
        """Computes the standard error of the mean; with groups of one it is the usual one (Miller, equation 4)."""
        count = self.sums.size
        if count < 2:
            return None
        return float(np.sqrt(count / (count - 1)) * _spread(self.sums, self.sizes))


def _spread(sums: Floats, sizes: Floats) -> float:
    """Computes the standard error of the ratio of the totals, without the correction for few groups."""
    residuals = sums - sizes * sums.sum() / sizes.sum()
    return float(np.sqrt((residuals**2).sum()) / sizes.sum())


def adjusted_wald_interval(values: Floats, groups: Groups | None = None, *, lower: float) -> tuple[float, float]:
    """Computes the interval of a mean of values from `lower` to 1, after adding one value at each bound.

    The added values give the interval a width where all values are equal. For gaps of -1, 0 and 1 it is that of Bonett
    and Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on paired data" (2012).
    Where questions share a group, each added value is a group of its own, the quantile is Student's, and the spread has
    the correction for few groups; `benchmarks/interval_coverage.py` measures how often it covers the true mean. A
    single group says nothing about others, so its interval is that of all possible means.
    """
    clusters = _Clusters(values, groups)
    count = clusters.sums.size
    if clusters.clustered and count == 1:
        return lower, 1.0
    sums, sizes = np.append(clusters.sums, (lower, 1.0)), np.append(clusters.sizes, (1.0, 1.0))
    quantile = NormalDist().inv_cdf(1 - TAIL)
    if clusters.clustered:
        from scipy.special import stdtrit  # noqa: PLC0415 - takes a second

        quantile = stdtrit(count - 1, 1 - TAIL) * np.sqrt(count / (count - 1))
    mean, half_width = float(sums.sum() / sizes.sum()), float(quantile * _spread(sums, sizes))
    return max(lower, mean - half_width), min(1.0, mean + half_width)


class Difference(Value):
    """The mean difference of two systems on the same questions; positive where the first is better."""

    value: float
    low: float
    high: float
    """Bounds of the 95 % interval."""
    p: float
    """p-value of McNemar's exact test, or of `sign_flip_test` where repetitions disagree or groups are flipped."""
    n: int
    """Number of questions."""

    @property
    def significant(self) -> bool:
        """Whether both the test and the interval exclude zero."""
        return self.p < 1 - CONFIDENCE_LEVEL and (self.low > 0 or self.high < 0)


def mean_difference(ours: Sequence[float], theirs: Sequence[float], groups: Groups | None = None) -> Difference:
    """Compares the means of two systems on the same questions in the same order; there must be at least one.

    The test flips the signs of whole groups, because only groups are independent.
    """
    gaps = np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)
    low, high = adjusted_wald_interval(gaps, groups, lower=-1)
    sums = _Clusters(gaps, groups).sums
    return Difference(value=float(gaps.mean()), low=low, high=high, p=_p_value(sums[sums != 0]), n=gaps.size)


def _p_value(nonzero_gaps: Floats) -> float:
    if nonzero_gaps.size < 2:  # either sign is equally likely
        return 1.0
    if set(nonzero_gaps) <= {-1.0, 1.0}:
        from scipy.stats import binomtest  # noqa: PLC0415 - takes a second

        return float(binomtest(int((nonzero_gaps > 0).sum()), nonzero_gaps.size).pvalue)
    return sign_flip_test(nonzero_gaps)


def sign_flip_test(gaps: Floats) -> float:
    """Returns the p-value of a permutation test that flips the signs of `gaps`.

    It is exact up to `RESAMPLES` sign patterns, that is 13 gaps. Beyond that the patterns are drawn at random and the
    observed one is counted with them, which makes p slightly too large rather than too small.
    """
    from scipy.stats import permutation_test  # noqa: PLC0415 - takes a second

    result = permutation_test(
        (gaps,),
        np.mean,
        permutation_type="samples",
        n_resamples=RESAMPLES,
        batch=max(1, DRAWS_AT_ONCE // gaps.size),
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


def paired_difference(
    ours: Sequence[float | None], theirs: Sequence[float | None], groups: Groups | None = None
) -> Difference | None:
    """Compares two systems on the questions where both have a value; `None` without such a question."""
    names = groups or [str(number) for number in range(len(ours))]
    triples = [
        (our, their, name)
        for our, their, name in zip(ours, theirs, names, strict=True)
        if our is not None and their is not None
    ]
    if not triples:
        return None
    our_means, their_means, shared_groups = zip(*triples, strict=True)
    return mean_difference(our_means, their_means, shared_groups)


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """Adjusts the p-values for multiple tests; Holm, "A simple sequentially rejective multiple test procedure"."""
    p_values = np.array([difference.p for difference in differences])
    order = np.argsort(p_values, kind="stable")
    scaled = np.minimum(1, p_values[order] * np.arange(p_values.size, 0, -1))
    p_values[order] = np.maximum.accumulate(scaled)
    return [
        difference.model_copy(update={"p": p}) for difference, p in zip(differences, p_values.tolist(), strict=True)
    ]


def fewest_groups(tests: int) -> int:
    """Returns the fewest groups with which one of so many paired tests can be significant, corrected with `holm`.

    The smallest p-value is that of groups which all differ in the same direction: of their sign patterns, two are as
    extreme.
    """
    return 2 + int(log2(tests / (1 - CONFIDENCE_LEVEL)))


def resample_sums(rows: Floats) -> Floats:
    """Draws columns with replacement, as many as there are, `RESAMPLES` times; returns the sums of each row."""
    count, rng = rows.shape[1], np.random.default_rng(0)
    at_once = max(1, DRAWS_AT_ONCE // count)
    sizes = [min(at_once, RESAMPLES - start) for start in range(0, RESAMPLES, at_once)]
    return np.concatenate([rows[:, rng.integers(count, size=(size, count))].sum(axis=2) for size in sizes], axis=1)


def bootstrap_ratio(
    numerator: Sequence[float], denominator: Sequence[float], groups: Groups | None = None
) -> tuple[float, float, float]:
    """Returns the ratio of two means over the same questions, and the bounds of its bootstrap 95 % interval.

    Whole groups are drawn. Resamples whose denominator is not positive have no ratio and are left out, which scipy's
    bootstrap can't do.
    """
    above, below = (_Clusters(np.asarray(values, dtype=float), groups).sums for values in (numerator, denominator))
    drawn_above, drawn_below = resample_sums(np.stack([above, below]))
    positive = drawn_below > 0
    low, high = np.quantile(drawn_above[positive] / drawn_below[positive], (TAIL, 1 - TAIL))
    return float(above.sum() / below.sum()), float(low), float(high)
