"""The gate: how much room there is above the best single worker and the best fixed workflow."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from rl_conductor.types import Value
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.experience import ScoreTable
from rl_conductor_training.learn.search.candidates import describe
from rl_conductor_training.statistics import Estimate, estimate

MIN_GROUPS = 6
"""Minimum number of groups of questions from which something is concluded."""
TOLERANCE = 0.02
"""Share of the questions by which a cheaper system may be behind the best one."""
MIN_GAIN = 0.05
"""Minimum share of further right answers for which systems are compared on held-out questions."""
MIN_SAVING = 0.2
"""Minimum share of saved dollars for which they are."""
NEGLIGIBLE = 0.1
"""Share of further right answers below which the interval of the room has to end before nothing is to be learned."""


class Gate(Value):
    """The room for learning, measured on the training and validation questions."""

    best_single: str
    best_fixed: str
    cheapest_single: str | None = None
    """A cheaper single worker that answers nearly as many questions as the best one."""
    single: Estimate
    """Share that the best single worker answers."""
    fixed: Estimate
    """Share that the best fixed workflow answers."""
    oracle: Estimate
    """Share that at least one workflow answers."""
    fixed_over_single: Estimate
    oracle_over_fixed: Estimate
    """The room: the maximum gain of choosing a workflow for each question."""
    saving: float = 0.0
    """Share of the best fixed workflow's dollars that the cheapest right workflow of each question would save."""
    is_open: bool
    """Whether it is shown that choosing a workflow for each question can answer more than the best fixed workflow."""
    reason: str
    """Why the gate is open or closed."""

    @property
    def is_promising(self) -> bool:
        """Whether a fixed workflow or a choice for each question seems to answer more, or as much for less.

        Only the held-out questions can show it; they are worth opening also where a few groups of questions leave a
        wide interval.
        """
        gain = max(self.fixed_over_single.value, self.oracle_over_fixed.value)
        has_gain = gain >= MIN_GAIN or self.saving >= MIN_SAVING
        return has_gain and self.oracle_over_fixed.groups >= MIN_GROUPS


def best_workflow(table: ScoreTable, workflows: Sequence[Workflow]) -> Workflow:
    """Returns the workflow with the highest mean score; of equal ones the cheapest, then the first."""
    return min(workflows, key=lambda workflow: (-table.mean(workflow), table.cost_order(workflow), len(workflow.steps)))


def cheapest_worker(table: ScoreTable, singles: Sequence[Workflow]) -> Workflow | None:
    """Returns the cheapest worker within `TOLERANCE` of the best one; `None` if none is known to cost fewer dollars."""
    best = best_workflow(table, singles)
    good = [single for single in singles if table.mean(single) >= table.mean(best) - TOLERANCE]
    cheapest = min(good, key=table.cost_order)
    return cheapest if table.cost_order(cheapest)[:2] < table.cost_order(best)[:2] else None


def measure_room(
    table: ScoreTable,
    singles: Sequence[Workflow],
    portfolio: Sequence[Workflow],
    groups: Sequence[str],
    *,
    is_whole: bool = True,
) -> Gate:
    """Measures the room above single workers and fixed workflows, on questions where all of them ran.

    Args:
        table: the scores on the training and validation questions.
        singles: the workflows of single workers.
        portfolio: the other good workflows.
        groups: the group of each question of `table`.
        is_whole: whether no cap ended the search early.
    """
    single = best_workflow(table, singles)
    fixed = best_workflow(table, [*singles, *portfolio])
    cheapest = cheapest_worker(table, singles)
    workflows = list(dict.fromkeys([*singles, *portfolio]))
    columns = [[score or 0.0 for score in table.scores(workflow)] for workflow in workflows]
    oracle = [max(scores) for scores in zip(*columns, strict=True)]
    single_scores, fixed_scores = columns[workflows.index(single)], columns[workflows.index(fixed)]
    room = _gain(oracle, fixed_scores, groups)
    best = estimate(oracle, groups)
    gain = _gain(fixed_scores, single_scores, groups)
    saving = _saving(table, workflows, fixed)
    is_open = room.low > 0 and room.groups >= MIN_GROUPS
    return Gate(
        best_single=describe(single),
        best_fixed=describe(fixed),
        cheapest_single=cheapest and describe(cheapest),
        single=estimate(single_scores, groups),
        fixed=estimate(fixed_scores, groups),
        oracle=best,
        fixed_over_single=gain,
        oracle_over_fixed=room,
        saving=saving,
        is_open=is_open,
        reason=_reason(room, gain, best, saving, is_open=is_open, is_whole=is_whole),
    )


def _gain(ours: Sequence[float], theirs: Sequence[float], groups: Sequence[str]) -> Estimate:
    return estimate([our - their for our, their in zip(ours, theirs, strict=True)], groups, lower=-1)


def _saving(table: ScoreTable, workflows: Sequence[Workflow], fixed: Workflow) -> float:
    """Computes the share of `fixed`'s dollars that are saved by the cheapest right workflow of each question.

    It is 0 where a price is unknown.
    """
    usd, cheapest_usd = Decimal(0), Decimal(0)
    for sample in table.samples:
        fixed_row = table.rows[fixed, sample.id]
        best = [row for row in table.best_rows(sample) if row.workflow in workflows]
        cheapest_row = best[0] if best else fixed_row
        if cheapest_row.unpriced_calls or fixed_row.unpriced_calls:
            return 0.0
        usd, cheapest_usd = usd + fixed_row.usd, cheapest_usd + cheapest_row.usd
    return float(1 - cheapest_usd / usd) if usd else 0.0


def _reason(room: Estimate, gain: Estimate, oracle: Estimate, saving: float, *, is_open: bool, is_whole: bool) -> str:
    interval = f"95 % interval {_points(room.low)} to {_points(room.high)}, {room.size}"
    if is_open:
        return (
            f"choosing a workflow for each question could answer up to {_points(room.value)} percentage points more "
            f"than the best fixed workflow ({interval})"
        )
    if room.groups < MIN_GROUPS:
        return (
            f"nothing can be concluded from {room.n} questions in {room.groups} groups on which all workflows ran; "
            f"at least {MIN_GROUPS} groups are needed: raise the caps and run the same command again"
        )
    if not is_whole and oracle.value - room.value < 1:  # more workflows can't do better than one that is always right
        return (
            "room above the best fixed workflow is not shown on the questions that the caps allowed "
            f"({_points(room.value)} percentage points, {interval}): raise the caps and run the same command again"
        )
    if oracle.value == 0:
        return "there is nothing to learn: no workflow answered any question"
    return _describe_unshown(room, gain, oracle, saving, interval)


def _describe_unshown(room: Estimate, gain: Estimate, oracle: Estimate, saving: float, interval: str) -> str:
    if room.high >= NEGLIGIBLE:
        return (
            f"a gain from choosing a workflow for each question is not shown with {room.groups} groups of questions: "
            f"it is at most {_points(room.value)} percentage points on these ({interval}); give more kinds of "
            "questions, or your own `group`"
        )
    finding = (
        f"choosing among the workflows for each question adds {_points(room.value)} percentage points ({interval}) "
        f"to the {oracle.value - room.value:.0%} of the best fixed one"
    )
    if saving >= MIN_SAVING:
        return f"{finding}, but the cheapest right one of each question costs {saving:.0%} less"
    conclusion = "one workflow for all questions is enough" if gain.value >= MIN_GAIN else "there is nothing to learn"
    return f"{conclusion}: {finding}"


def _points(difference: float) -> int:
    """Rounds a difference of two shares to percentage points."""
    return round(100 * difference)
