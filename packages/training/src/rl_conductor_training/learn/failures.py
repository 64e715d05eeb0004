"""Counts the calls of each model that failed: one that is down at times changes which system looks best."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from rl_conductor.trace.trace import Call
from rl_conductor_training.cut_off_replies import PLANNER, add_counts
from rl_conductor_training.learn.record import WorkerFailures

OK = "ok"
"""The outcome of a call that did not fail."""


def count_outcomes(calls: Iterable[Call]) -> dict[str, dict[str, int]]:
    """Counts the attempts of a run by worker or `PLANNER`, and by `OK` or the error.

    Replies from the cache are not counted.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for call in calls:
        is_cached = call.usage.cached_calls == call.usage.calls > 0
        if not call.is_check and not is_cached and call.outcome != "cancelled":
            counts[call.worker or PLANNER][OK if call.error is None else call.error] += 1
    return {worker: dict(outcomes) for worker, outcomes in counts.items()}


def count_failed(outcomes: Mapping[str, Mapping[str, int]]) -> int:
    """Returns the number of failed attempts of a run, from its counts of `count_outcomes`."""
    return sum(count for errors in outcomes.values() for error, count in errors.items() if error != OK)


def find_failures(runs: Iterable[Mapping[str, Mapping[str, int]]]) -> tuple[WorkerFailures, ...]:
    """Returns the workers, and `PLANNER`, with failed calls, those with the largest share of them first.

    Args:
        runs: the counts of each run, as of `count_outcomes`.
    """
    failures = []
    for worker, outcomes in sorted(add_counts(runs).items()):
        errors = {error: count for error, count in sorted(outcomes.items()) if error != OK}
        if errors:
            reason = max(errors, key=lambda error: errors[error])
            failed, calls = sum(errors.values()), sum(outcomes.values())
            failures.append(WorkerFailures(worker=worker, failed=failed, calls=calls, reason=reason))
    return tuple(sorted(failures, key=lambda worker: -worker.failed / worker.calls))
