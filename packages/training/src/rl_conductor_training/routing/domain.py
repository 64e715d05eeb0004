"""Trains the domain of a learned conductor: a logistic regression of the task's questions against ordinary requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

import numpy as np

from rl_conductor.planning.routing.domain import Domain
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor_training.routing.logistic_regression import DIGITS, build_regression, export_score
from rl_conductor_training.routing.selector import feature_matrix
from rl_conductor_training.tasks import Sample

FOLDS = 5
REFUSED_QUESTIONS = 0.05
"""Share of the questions of other groups that may be refused."""
INCLUDED_OTHERS = 0.05
"""Share of ordinary requests that may be included, which leaves room for new wordings of the questions."""


def ordinary_requests() -> list[str]:
    """Returns requests of many kinds that people send to assistants, each only once."""
    text = (files(__package__) / "ordinary_requests.txt").read_text("utf-8")
    return text.splitlines()


def has_chains(selector: WorkflowSelector) -> bool:
    """Returns whether the workflows need a domain: a single worker is for all requests."""
    return any(len(workflow.steps) > 1 for workflow in selector.workflows)


def task_domain(samples: Sequence[Sample], groups: Mapping[str, str]) -> Domain:
    """Trains the domain of a task.

    Args:
        samples: all questions of the task; their answers are not used.
        groups: the group of each question by its id.
    """
    return train_domain([sample.question for sample in samples], [groups[sample.id] for sample in samples])


def train_domain(questions: Sequence[str], groups: Sequence[str]) -> Domain:
    """Trains the classifier, with a threshold that includes all these questions and nearly all of further groups."""
    from sklearn.model_selection import GroupKFold, cross_val_predict  # noqa: PLC0415 - takes seconds

    others = ordinary_requests()
    features = feature_matrix([*questions, *others])
    is_question = np.arange(len(questions) + len(others)) < len(questions)
    names = [*groups, *(f"ordinary {number}" for number in range(len(others)))]
    classifier = build_regression(is_balanced=True)
    unseen = cross_val_predict(
        classifier, features, is_question, groups=names, cv=GroupKFold(FOLDS), method="decision_function"
    )
    classifier.fit(features, is_question)
    seen = classifier.decision_function(features)[is_question]
    lowest = float(np.quantile(unseen[is_question], REFUSED_QUESTIONS))
    highest = float(np.quantile(unseen[~is_question], 1 - INCLUDED_OTHERS))
    threshold = min(lowest, highest, float(seen.min())) - 10**-DIGITS
    return Domain(
        score=export_score(classifier),
        threshold=round(threshold, DIGITS),
        accepted=float(np.mean(unseen[is_question] >= threshold)),
        refused=float(np.mean(unseen[~is_question] < threshold)),
    )
