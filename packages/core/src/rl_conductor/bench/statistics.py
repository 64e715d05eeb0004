"""How sure a number is: standard errors by question, intervals, paired tests. Pure.

Questions are drawn, repetitions of one question are not independent: so a question's repetitions count as one mean
(clustered standard errors).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, permutation_test

from rl_conductor.intervals import LEVEL, share
from rl_conductor.types import Value

RESAMPLES = 10_000
TAIL = (1 - LEVEL) / 2

Floats = NDArray[np.float64]


class Estimate(Value):
    """A mean of shares, its standard error and its 95 % interval."""

    value: float
    error: float | None
    """`None` of a single question, which tells nothing of others."""
    low: float
    high: float
    n: int
    """Questions."""

    @property
    def in_words(self) -> str:
        """The mean with its standard error, where that is known."""
        return f"{self.value:.2f}" if self.error is None else f"{self.value:.2f} ± {self.error:.2f}"


def estimate(questions: Sequence[float]) -> Estimate:
    """Of the means of questions, each from 0 to 1: Wilson's interval where each is right or wrong, else a wary one.

    Raises:
        ValueError: there are none.
    """
    values = np.asarray(questions, dtype=float)
    if not values.size:
        raise ValueError("there are no questions to take a mean of")
    error = float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else None
    if set(values) <= {0.0, 1.0}:
        exact = share(int(values.sum()), values.size)
        low, high = exact.low, exact.high
    else:
        low, high = wary(values, least=0)
    return Estimate(value=float(values.mean()), error=error, low=low, high=high, n=values.size)


def wary(values: Floats, *, least: float) -> tuple[float, float]:
    """The normal interval of a mean of values from `least` to 1, as if each of these two had been seen once more.

    So it has a width where all values are alike. For gaps of -1, 0 and 1 it is that of Bonett and Price, "Adjusted Wald
    confidence interval for a difference of binomial proportions based on paired data" (2012).
    """
    more = np.append(values, (least, 1.0))
    half = NormalDist().inv_cdf(1 - TAIL) * more.std() / np.sqrt(more.size)
    return max(least, float(more.mean() - half)), min(1.0, float(more.mean() + half))


class Difference(Value):
    """How much better one system is than another on the same questions."""

    value: float
    low: float
    high: float
    """Bounds of the 95 % interval."""
    p: float
    """Of the test that there is no difference: McNemar's, or where repetitions disagree that of `permuted`."""
    n: int
    """Questions."""

    @property
    def sure(self) -> bool:
        """Whether both the test and the interval leave zero out."""
        return self.p < 1 - LEVEL and (self.low > 0 or self.high < 0)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Of the means of the same questions in the same order; there must be one or more."""
    gaps = np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)
    low, high = wary(gaps, least=-1)
    return Difference(value=float(gaps.mean()), low=low, high=high, p=_p(gaps[gaps != 0]), n=gaps.size)


def _p(gaps: Floats) -> float:
    """Of gaps that are not zero; one alone may as well have had the other sign."""
    if gaps.size < 2:
        return 1.0
    if set(gaps) <= {-1.0, 1.0}:
        return float(binomtest(int((gaps > 0).sum()), gaps.size).pvalue)
    return permuted(gaps)


def permuted(gaps: Floats) -> float:
    """The share of changes of sign that give as large a mean.

    All of them are looked at where that is no more than `RESAMPLES`, for 13 gaps; else so many are drawn, and the one
    that was seen is counted with them, so that p is too large rather than too small.
    """
    found = permutation_test(
        (gaps,), np.mean, permutation_type="samples", n_resamples=RESAMPLES, rng=np.random.default_rng(0)
    )
    return float(found.pvalue)


def paired(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Difference | None:
    """The difference on the questions that both have a number for; `None` where there is no such question."""
    both = [(mine, other) for mine, other in zip(ours, theirs, strict=True) if mine is not None and other is not None]
    return difference([mine for mine, _ in both], [other for _, other in both]) if both else None


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """The same with p for so many tests at once: Holm's, "A simple sequentially rejective multiple test procedure"."""
    chances = np.array([one.p for one in differences])
    order = np.argsort(chances, kind="stable")
    stepped = np.minimum(1, chances[order] * np.arange(chances.size, 0, -1))
    chances[order] = np.maximum.accumulate(stepped)
    return [one.model_copy(update={"p": p}) for one, p in zip(differences, chances.tolist(), strict=True)]


def ratio(part: Sequence[float], whole: Sequence[float]) -> tuple[float, float, float]:
    """The mean of `part` over that of `whole`, question by question, with the bounds of a bootstrap's 95 % interval.

    Draws of questions in which there is no `whole` have no ratio, and are left out.
    """
    draws = np.random.default_rng(0).integers(len(part), size=(RESAMPLES, len(part)))
    parts, wholes = (np.asarray(each, dtype=float)[draws].mean(axis=1) for each in (part, whole))
    low, high = np.quantile(parts[wholes > 0] / wholes[wholes > 0], (TAIL, 1 - TAIL))
    return float(np.mean(part) / np.mean(whole)), float(low), float(high)
