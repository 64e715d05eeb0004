"""Counts the replies of each worker that were cut off: an answer without its end usually counts as wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from rl_conductor.trace.trace import Call
from rl_conductor.types import FinishReason, Value
from rl_conductor_training.reporting import Table

K = TypeVar("K", bound=str)

Finishes = Mapping[str, Mapping[FinishReason, int]]
"""Counts of replies by worker, and by why they ended."""

PLANNER = "the planner"
"""Stands for the planner among the workers."""
REMEDIES: Mapping[FinishReason, str] = {
    "length": "max_tokens was reached: raise it for this model",
    "content_filter": "the vendor's content filter: take another model, or leave such questions out",
}
"""The cause of a cut-off and its remedy, by the reply's finish reason."""
TITLE = "Replies that were cut off, which usually count as wrong"


class CutOffReplies(Value):
    """The replies of a worker, or of the planner, that were cut off for one reason."""

    worker: str
    """Its name, or `the planner`."""
    reason: FinishReason
    cut_off: int
    replies: int
    """Number of all its replies; one from the cache counts in each run that used it."""


def count_finishes(calls: Iterable[Call]) -> dict[str, dict[FinishReason, int]]:
    """Counts the replies of a run by worker or `PLANNER`, and by why they ended."""
    counts: dict[str, Counter[FinishReason]] = defaultdict(Counter)
    for call in calls:
        reason = "length" if call.out_of_tokens else call.completion and call.completion.finish_reason
        if reason and not call.is_check:
            counts[call.worker or PLANNER][reason] += 1
    return {worker: dict(reasons) for worker, reasons in counts.items()}


def add_counts(runs: Iterable[Mapping[str, Mapping[K, int]]]) -> dict[str, dict[K, int]]:
    """Adds up the counts of runs by worker, such as those of `count_finishes`."""
    counts: dict[str, Counter[K]] = defaultdict(Counter)
    for run in runs:
        for worker, reasons in run.items():
            counts[worker].update(reasons)
    return {worker: dict(reasons) for worker, reasons in counts.items()}


def find_cut_off(runs: Iterable[Finishes]) -> tuple[CutOffReplies, ...]:
    """Returns the workers, and `PLANNER`, with replies that were cut off, those with the largest share of them first.

    Args:
        runs: the counts of each run, as of `count_finishes`.
    """
    cut_off = [
        CutOffReplies(worker=worker, reason=reason, cut_off=reasons[reason], replies=sum(reasons.values()))
        for worker, reasons in sorted(add_counts(runs).items())
        for reason in REMEDIES
        if reason in reasons
    ]
    return tuple(sorted(cut_off, key=lambda row: -row.cut_off / row.replies))


def cut_off_table(cut_off: Sequence[CutOffReplies]) -> Table:
    """Builds the table of the workers with replies that were cut off."""
    rows = tuple(
        (row.worker, REMEDIES[row.reason], f"{row.cut_off:,} of {row.replies:,} ({row.cut_off / row.replies:.0%})")
        for row in cut_off
    )
    return Table(("worker", "what cut them off, and what helps", "replies cut off"), rows)
