"""How sure a number is: standard errors by question, intervals, paired tests. Pure.

Questions are drawn, repetitions of one question are not independent: so a question's repetitions count as one mean
(clustered standard errors), and whole questions are resampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, permutation_test

from rl_conductor.intervals import LEVEL, share
from rl_conductor.types import Value

RESAMPLES = 10_000

Floats = NDArray[np.float64]


class Estimate(Value):
    """A mean, its standard error and its 95 % interval."""

    value: float
    error: float
    low: float
    high: float
    n: int
    """Questions."""


def estimate(questions: Sequence[float]) -> Estimate:
    """Of the means of questions: Wilson's interval where each is right or wrong, else a bootstrap's.

    Raises:
        ValueError: there are none.
    """
    values = np.asarray(questions, dtype=float)
    if not values.size:
        raise ValueError("there are no questions to take a mean of")
    error = float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else 0.0
    if set(values) <= {0.0, 1.0}:
        exact = share(int(values.sum()), values.size)
        low, high = exact.low, exact.high
    else:
        low, high = _bounds(resampled(values).mean(axis=1))
    return Estimate(value=float(values.mean()), error=error, low=low, high=high, n=values.size)


def resampled(values: Floats) -> Floats:
    """`values` drawn again with replacement, a row a draw; equal sizes are drawn alike."""
    return values[_drawn(values.shape[0])]


def _drawn(size: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(size, size=(RESAMPLES, size))


def _bounds(draws: Floats) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(draws, (tail, 1 - tail))
    return float(low), float(high)


class Difference(Value):
    """How much better one system is than another on the same questions."""

    value: float
    low: float
    high: float
    """Bounds of the 95 % interval: a bootstrap over questions."""
    p: float | None = None
    """Of the exact test that there is no difference: McNemar's, or a permutation test when repetitions disagree. `None`
    for accuracies given validity, which are of different questions."""

    @property
    def sure(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Of the means of the same questions in the same order."""
    gaps = np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)
    low, high = _bounds(resampled(gaps).mean(axis=1))
    return Difference(value=float(gaps.mean()), low=low, high=high, p=_p(gaps))


def _p(gaps: Floats) -> float:
    if not gaps.any():
        return 1.0
    if set(gaps) <= {-1.0, 0.0, 1.0}:
        return float(binomtest(int((gaps > 0).sum()), int((gaps != 0).sum())).pvalue)
    drawn = permutation_test(
        (gaps,), np.mean, permutation_type="samples", n_resamples=RESAMPLES, rng=np.random.default_rng(0)
    )
    return float(drawn.pvalue)


def valid_difference(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Difference | None:
    """Of the accuracies given validity; `None` where one of them never wrote a valid plan.

    Args:
        ours: for each question the mean of the repetitions whose plan was valid; `None` where none was.
        theirs: the same of the other, question by question.
    """
    mine, others = (np.array([(one or 0.0, one is not None) for one in each], dtype=float) for each in (ours, theirs))
    if not mine[:, 1].sum() or not others[:, 1].sum():
        return None
    drawn = _drawn(len(mine))
    gaps = _shares(mine[drawn]) - _shares(others[drawn])
    low, high = _bounds(gaps[np.isfinite(gaps)])
    return Difference(value=float((_shares(mine[None]) - _shares(others[None]))[0]), low=low, high=high)


def _shares(pairs: Floats) -> Floats:
    """The mean of the questions with a valid plan, for each draw of questions."""
    scored, valid = pairs[..., 0].sum(axis=-1), pairs[..., 1].sum(axis=-1)
    shares: Floats = np.divide(scored, valid, out=np.full_like(scored, np.nan), where=valid > 0)
    return shares
