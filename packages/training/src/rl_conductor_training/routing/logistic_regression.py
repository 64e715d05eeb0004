"""Logistic regressions on the features of requests, and their export as `LinearScore`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scipy.sparse import csr_array

from rl_conductor.planning.routing.linear_score import LinearScore

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

INVERSE_PENALTY = 10.0
"""`C` of a binary regression: the best of 1 to 30 on 60 to 300 questions of twenty kinds."""
DIGITS = 6
"""Digits after the point of exported weights."""


def build_regression(inverse_penalty: float = INVERSE_PENALTY, *, is_balanced: bool = False) -> LogisticRegression:
    """Builds an untrained regression with an L2 penalty; a balanced one gives both classes the same weight."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes seconds

    balance = "balanced" if is_balanced else None
    return LogisticRegression(C=inverse_penalty, class_weight=balance, solver="newton-cg", tol=1e-6)


def sparse_rows(features: Sequence[Mapping[int, float]], width: int) -> csr_array:
    """Returns the features of each request as a sparse matrix of shape (requests, `width`)."""
    rows = [number for number, row in enumerate(features) for _ in row]
    columns = [column for row in features for column in row]
    values = [value for row in features for value in row.values()]
    return csr_array((values, (rows, columns)), shape=(len(features), width))


def export_score(classifier: LogisticRegression, row: int = 0) -> LinearScore:
    """Returns a trained regression's score of one class, without weights that are 0."""
    weights = enumerate(classifier.coef_[row])
    return LinearScore(
        bias=round(float(classifier.intercept_[row]), DIGITS),
        weights={bucket: round(float(weight), DIGITS) for bucket, weight in weights if abs(weight) > 1e-6},
    )
