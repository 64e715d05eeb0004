"""Scores of questions: repetitions become one mean, and the mean over questions an estimate clustered by group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

from rl_conductor_training.bench.results import SampleResult
from rl_conductor_training.statistics import Estimate, estimate


def estimate_accuracy(results: Sequence[SampleResult]) -> Estimate:
    """Estimates the mean score over questions, clustered by group."""
    return estimate(question_means(results), question_groups(results))


def question_means(results: Sequence[SampleResult]) -> list[float]:
    """Returns the mean score of each question over its repetitions, in the order of the questions."""
    return [fmean(result.value for result in group) for group in group_by_question(results)]


def question_groups(results: Sequence[SampleResult]) -> list[str]:
    """Returns the group of each question, in the order of the questions; its own id if it has no group.

    Questions that are all of one group count as independent: the estimate is one for this group.
    """
    questions = [group[0] for group in group_by_question(results)]
    groups = [result.group or result.key.sample for result in questions]
    return groups if len(set(groups)) > 1 else [result.key.sample for result in questions]


def group_by_question(results: Sequence[SampleResult]) -> list[list[SampleResult]]:
    """Groups results that are ordered by question: the repetitions of each question."""
    return [list(group) for _, group in groupby(results, key=lambda result: result.key.sample)]
