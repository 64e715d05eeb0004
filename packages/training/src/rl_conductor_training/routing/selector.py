"""Trains a `WorkflowSelector`: a multinomial logistic regression on which workflows are right.

It is exported as plain JSON, so that the core applies it without scikit-learn and without any call to a model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

from rl_conductor.planning.routing.linear_score import LinearScore
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.text.features import FEATURES, text_features
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.routing.logistic_regression import DIGITS, build_regression, export_score, sparse_rows

SELECTOR_INVERSE_PENALTY = 3.0
"""`C` of the regression: more regularisation helps with other wordings, less with few questions."""
COST_PENALTY = 0.05
"""Amount by which the score of each more expensive workflow is lowered, so that ties go to the cheapest."""
NEVER_RIGHT = -100.0
"""Score of a workflow that was right on no question."""


def train_selector(
    questions: Sequence[str], workflows: Sequence[Workflow], right: Sequence[Sequence[bool]]
) -> WorkflowSelector:
    """Trains one classifier over all workflows.

    A question is an example of each workflow that is right on it. The workflows are compared with one another, so that
    only the words that distinguish them count. In separate classifiers, each of which tells the right answers of one
    workflow, words of no use for the choice decide for requests in new words.

    Args:
        questions: the training questions.
        workflows: the workflows to choose from, the cheapest first.
        right: for each workflow, whether it answered each question.
    """
    examples = [(number, rank) for rank, flags in enumerate(right) for number, flag in enumerate(flags) if flag]
    trained = _train(feature_matrix([questions[number] for number, _ in examples]), [rank for _, rank in examples])
    never = LinearScore(bias=NEVER_RIGHT if trained else 0.0)
    scores = (_lower(trained.get(rank, never), COST_PENALTY * rank) for rank in range(len(workflows)))
    return WorkflowSelector(workflows=tuple(workflows), scores=tuple(scores))


def _train(features: csr_array, ranks: Sequence[int]) -> dict[int, LinearScore]:
    """Trains the regression; returns the scores of the workflows that have examples."""
    labels = sorted(set(ranks))
    if len(labels) < 2:
        return {rank: LinearScore() for rank in labels}
    classifier = build_regression(SELECTOR_INVERSE_PENALTY)
    classifier.fit(features, np.array(ranks))
    if len(labels) == 2:  # then scikit-learn stores only the second one's weights
        return {labels[0]: LinearScore(), labels[1]: export_score(classifier)}
    return {rank: export_score(classifier, row) for row, rank in enumerate(labels)}


def _lower(score: LinearScore, penalty: float) -> LinearScore:
    return score.model_copy(update={"bias": round(score.bias - penalty, DIGITS)})


def feature_matrix(questions: Sequence[str]) -> csr_array:
    """Returns the features of each question as a sparse matrix of shape (questions, features)."""
    return sparse_rows([text_features(question) for question in questions], FEATURES)
