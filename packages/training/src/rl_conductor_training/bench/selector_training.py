"""Trains a `WorkflowSelector`: for each workflow, a logistic regression on whether its answer is right.

It is exported as plain JSON, so that the core applies it without scikit-learn and without any call to a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

from rl_conductor.planning.features import FEATURES, LinearScore, text_features
from rl_conductor.planning.selector import WorkflowSelector
from rl_conductor.workflow.workflow import Workflow

INVERSE_PENALTY = 10.0
"""`C` of the logistic regression, as in the router of single calls."""
COST_PENALTY = 0.05
"""Amount by which the score of each more expensive workflow is lowered, so that ties go to the cheapest."""
DIGITS = 6


def train_selector(
    questions: Sequence[str], workflows: Sequence[Workflow], right: Sequence[Sequence[bool]]
) -> WorkflowSelector:
    """Trains one classifier for each workflow.

    Args:
        questions: the training questions.
        workflows: the workflows to choose from, the cheapest first.
        right: for each workflow, whether it answered each question.
    """
    features = feature_matrix(questions)
    scores = [_train(features, flags, penalty=COST_PENALTY * rank) for rank, flags in enumerate(right)]
    return WorkflowSelector(workflows=tuple(workflows), scores=tuple(scores))


def feature_matrix(questions: Sequence[str]) -> csr_array:
    """Returns the features of each question as a sparse matrix of shape (questions, features)."""
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for number, question in enumerate(questions):
        features = text_features(question)
        rows += [number] * len(features)
        columns += features.keys()
        values += features.values()
    return csr_array((values, (rows, columns)), shape=(len(questions), FEATURES))


def _train(features: csr_array, right: Sequence[bool], *, penalty: float) -> LinearScore:
    """Trains the classifier of one workflow; where it is always or never right, the score is constant."""
    if len(set(right)) == 1:
        odds = (sum(right) + 0.5) / (len(right) - sum(right) + 0.5)
        return LinearScore(bias=round(log(odds) - penalty, DIGITS))
    classifier = LogisticRegression(C=INVERSE_PENALTY, solver="newton-cg", tol=1e-6)
    classifier.fit(features, np.array(right))
    bias = float(classifier.intercept_[0]) - penalty
    return LinearScore(bias=round(bias, DIGITS), weights=export_weights(classifier))


def export_weights(classifier: LogisticRegression) -> dict[int, float]:
    """Returns the weights of a trained classifier by feature, without those that are 0."""
    return {
        bucket: round(float(weight), DIGITS) for bucket, weight in enumerate(classifier.coef_[0]) if abs(weight) > 1e-6
    }
