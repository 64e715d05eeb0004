"""Summarises results: a row per system, and comparisons between systems. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

import numpy as np

from rl_conductor.types import Usage, Value, total
from rl_conductor_training.bench.accuracy import (
    estimate_accuracy,
    group_by_question,
    question_groups,
    question_means,
)
from rl_conductor_training.bench.results import SampleResult
from rl_conductor_training.bench.runner import SystemResult, TaskResult
from rl_conductor_training.statistics import (
    Difference,
    Estimate,
    bootstrap_ratio,
    holm,
    mean_difference,
    paired_difference,
)

Verdict = Literal["gain", "loss", "not shown", "validity only", "sees answers"]
"""`not shown`: not significant. `validity only`: more plans were valid, but no gain is significant on the questions
where both plans were. `sees answers`: one of the two uses the right answers, so nothing is claimed."""


class SummaryRow(Value):
    """The summary of one system."""

    system: str
    description: str
    sees_answers: bool
    accuracy: Estimate
    valid_plans: float | None
    """Share of runs whose first plan was valid as written; `None` for systems without plans."""
    accuracy_if_valid: Estimate | None
    """Accuracy of the runs with a valid plan."""
    steps: float
    """Mean per run."""
    usage: Usage
    """Total of all runs."""
    runs: int
    """Questions times repetitions."""
    p50: float
    p95: float
    """Latency percentiles in seconds."""
    failures: int
    """Runs without an answer."""
    accuracy_by_depth: dict[int, Estimate]
    steps_by_depth: dict[int, float]
    """Mean number of steps per run, by question depth."""

    @property
    def tokens(self) -> float:
        """Mean number of tokens per run."""
        return self.usage.total_tokens / self.runs

    @property
    def dollars(self) -> float:
        """Mean US dollars per run; a lower bound where `usage` has unpriced calls."""
        return float(self.usage.cost) / self.runs


class Comparison(Value):
    """A system compared with a baseline."""

    system: str
    against: str
    sees_answers: bool
    """Whether one of them uses the right answers."""
    difference: Difference
    """Difference in accuracy."""
    difference_if_valid: Difference | None
    """Difference on the questions where both had a valid plan; `None` without one. Its p-value is not adjusted, because
    it can only take a gain away."""
    validity_difference: Difference | None
    """Difference in the share of valid plans; `None` where one of them writes none."""

    @property
    def verdict(self) -> Verdict:
        """The claim that the numbers support."""
        if self.sees_answers:
            return "sees answers"
        if not self.difference.significant:
            return "not shown"
        if self.difference.value < 0:
            return "loss"
        if _is_gain(self.difference_if_valid):
            return "gain"
        return "validity only" if _is_gain(self.validity_difference) else "not shown"


def _is_gain(difference: Difference | None) -> bool:
    return difference is not None and difference.significant and difference.value > 0


def summarize(system_result: SystemResult) -> SummaryRow:
    """Summarises the results of one system."""
    results = system_result.results
    planned = [result for result in results if result.valid is not None]
    valid = [result for result in planned if result.valid]
    seconds = [result.seconds for result in results]
    by_depth = _group_by_depth(results)
    return SummaryRow(
        system=system_result.system.name,
        description=system_result.system.description,
        sees_answers=system_result.system.sees_answers,
        accuracy=estimate_accuracy(results),
        valid_plans=len(valid) / len(planned) if planned else None,
        accuracy_if_valid=estimate_accuracy(valid) if valid else None,
        steps=fmean(result.steps for result in results),
        usage=total(result.usage for result in results),
        runs=len(results),
        p50=float(np.quantile(seconds, 0.5)),
        p95=float(np.quantile(seconds, 0.95)),
        failures=sum(result.error is not None for result in results),
        accuracy_by_depth={depth: estimate_accuracy(group) for depth, group in by_depth.items()},
        steps_by_depth={depth: fmean(result.steps for result in group) for depth, group in by_depth.items()},
    )


def _group_by_depth(results: Sequence[SampleResult]) -> dict[int, list[SampleResult]]:
    depths = sorted({result.depth for result in results if result.depth is not None})
    return {depth: [result for result in results if result.depth == depth] for depth in depths}


def compare_systems(task_result: TaskResult, against: Sequence[str]) -> list[Comparison]:
    """Compares each system with each baseline that ran, every pair once, and adjusts the p-values (Holm)."""
    systems = {result.system.name: result for result in task_result.systems}
    comparisons = [
        compare(result, systems[baseline])
        for number, baseline in enumerate(against)
        if baseline in systems
        for result in task_result.systems
        if result.system.name not in against[: number + 1]
    ]
    adjusted = holm([comparison.difference for comparison in comparisons])
    return [
        comparison.model_copy(update={"difference": difference})
        for comparison, difference in zip(comparisons, adjusted, strict=True)
    ]


def compare(ours: SystemResult, theirs: SystemResult) -> Comparison:
    """Compares two systems question by question."""
    groups = question_groups(ours.results)
    return Comparison(
        system=ours.system.name,
        against=theirs.system.name,
        sees_answers=ours.system.sees_answers or theirs.system.sees_answers,
        difference=mean_difference(question_means(ours.results), question_means(theirs.results), groups),
        difference_if_valid=paired_difference(_means_if_valid(ours), _means_if_valid(theirs), groups),
        validity_difference=paired_difference(_validity_means(ours), _validity_means(theirs), groups),
    )


def _means_if_valid(system_result: SystemResult) -> list[float | None]:
    """Returns the mean score of each question over the runs without an invalid plan; `None` where there is none."""
    groups = group_by_question(system_result.results)
    values = [[result.value for result in group if result.valid is not False] for group in groups]
    return [fmean(scores) if scores else None for scores in values]


def _validity_means(system_result: SystemResult) -> list[float | None]:
    groups = group_by_question(system_result.results)
    plans = [[result.valid for result in group if result.valid is not None] for group in groups]
    return [fmean(validity) if validity else None for validity in plans]


class GapClosed(Value):
    """The share of the gap between the best single worker and the oracle that a system closed, with its interval."""

    system: str
    value: float
    low: float
    high: float


def gaps_closed(
    task_result: TaskResult, comparisons: Sequence[Comparison], *, single: str, oracle: str
) -> list[GapClosed]:
    """Returns the share of the gap closed by each system that gains on `single`, if the oracle ran and is better."""
    means = {result.system.name: question_means(result.results) for result in task_result.systems}
    gains = [
        comparison.system for comparison in comparisons if comparison.against == single and comparison.verdict == "gain"
    ]
    if oracle not in means or not gains or fmean(means[oracle]) <= fmean(means[single]):
        return []
    groups = question_groups(task_result.systems[0].results)
    return [_gap_closed(name, means[name], means[single], means[oracle], groups) for name in gains]


def _gap_closed(
    system: str, ours: Sequence[float], single: Sequence[float], oracle: Sequence[float], groups: Sequence[str]
) -> GapClosed:
    gain, gap = ([value - start for value, start in zip(values, single, strict=True)] for values in (ours, oracle))
    value, low, high = bootstrap_ratio(gain, gap, groups)
    return GapClosed(system=system, value=value, low=low, high=high)


def worker_shares(system_result: SystemResult) -> dict[str, dict[str, float]]:
    """Returns each worker's share of a system's steps, by domain of the question."""
    shares: dict[str, dict[str, float]] = {}
    for domain in sorted({result.domain for result in system_result.results}):
        workers = [worker for result in system_result.results if result.domain == domain for worker in result.workers]
        shares[domain] = {worker: workers.count(worker) / len(workers) for worker in dict.fromkeys(workers)}
    return shares
