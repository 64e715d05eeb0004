"""Compares the systems on the held-out questions, with paired tests by group, and recommends one of them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.evaluation.gate import TOLERANCE
from rl_conductor_training.learn.experience import ExperienceRow, ScoreTable, cost_order
from rl_conductor_training.learn.record import SystemComparison, SystemSummary
from rl_conductor_training.learn.search.candidates import describe
from rl_conductor_training.statistics import estimate, holm, mean_difference

SINGLE, CHEAPEST, FIXED, LINEAR = "best single", "cheapest single", "best fixed", "linear"
PROMPTED, ORACLE = "prompted planner", "oracle"
BASELINES = (SINGLE, CHEAPEST, FIXED, LINEAR)
"""Systems that are always proved, because they need no planner, from simple to complex."""


@dataclass(frozen=True)
class SystemRows:
    """A system and its rows on the held-out questions, in their order."""

    name: str
    description: str
    rows: Mapping[str, ExperienceRow]
    """Row by sample id; samples without a row did not fit into the caps."""
    planner_calls: bool = False
    sees_answers: bool = False

    def scores(self, samples: Iterable[str]) -> list[float]:
        """Returns the scores on the samples, in their order."""
        return [self.rows[sample].score for sample in samples]


def common_samples(systems: Sequence[SystemRows], samples: Iterable[str]) -> list[str]:
    """Returns the ids of the samples on which every system ran."""
    return [sample for sample in samples if all(sample in system.rows for system in systems)]


def summarize_system(system: SystemRows, samples: Sequence[str], groups: Sequence[str]) -> SystemSummary:
    """Computes the means of a system over the samples."""
    rows = [system.rows[sample] for sample in samples]
    return SystemSummary(
        name=system.name,
        description=system.description,
        right=estimate(system.scores(samples), groups),
        usd=sum((row.usd for row in rows), Decimal(0)) / len(rows),
        unpriced_calls=sum(row.unpriced_calls for row in rows),
        tokens=sum(row.tokens for row in rows) / len(rows),
        seconds=sum(row.seconds for row in rows) / len(rows),
        planner_calls=system.planner_calls,
        sees_answers=system.sees_answers,
    )


def summarize_workers(table: ScoreTable, singles: Sequence[Workflow], groups: Sequence[str]) -> list[SystemSummary]:
    """Computes the means of each single worker over the questions of the table, on which all of them ran."""
    samples = [sample.id for sample in table.samples]
    rows = {single: {sample: table.rows[single, sample] for sample in samples} for single in singles}
    return [
        summarize_system(SystemRows(describe(single), "single worker", rows[single]), samples, groups)
        for single in singles
    ]


def compare(systems: Sequence[SystemRows], samples: Sequence[str], groups: Sequence[str]) -> list[SystemComparison]:
    """Compares the systems in pairs; p-values are corrected for their number (Holm)."""
    by_name = {system.name: system for system in systems}
    pairs = list(list_comparisons([system.name for system in systems if not system.sees_answers]))
    differences = [
        mean_difference(by_name[ours].scores(samples), by_name[theirs].scores(samples), groups)
        for ours, theirs in pairs
    ]
    corrected = holm(differences) if differences else []
    return [
        SystemComparison(system=ours, baseline=theirs, difference=difference)
        for (ours, theirs), difference in zip(pairs, corrected, strict=True)
    ]


def list_comparisons(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the pairs to compare: each system with the simpler ones, learners with the planner that they improve."""
    planned = [name for name in names if name not in BASELINES]
    yield from ((name, SINGLE) for name in names if name != SINGLE and SINGLE in names)
    if {LINEAR, FIXED} <= set(names):
        yield LINEAR, FIXED
    for name in planned:
        simpler = (FIXED, LINEAR) if name == PROMPTED else (FIXED, LINEAR, PROMPTED)
        yield from ((name, baseline) for baseline in simpler if baseline in names)


def recommend(systems: Sequence[SystemSummary], comparisons: Sequence[SystemComparison]) -> tuple[str, str]:
    """Recommends the cheapest system that is not worse, and gives the reason; of equally cheap ones the first.

    Systems of which a price is unknown come after the others, and the reason names them.

    A system is not worse if it answers at most `TOLERANCE` fewer questions than the best one. A system with a planner
    is considered only if it shows a gain over the best fixed workflow and over the linear selector.

    Args:
        systems: the systems, from simple to complex.
        comparisons: the tests between them.
    """
    gains = {(result.system, result.baseline) for result in comparisons if result.verdict == "gain"}
    names = {system.name for system in systems}
    baselines = [name for name in (FIXED, LINEAR) if name in names]

    def is_proved(system: SystemSummary) -> bool:
        return not system.planner_calls or all((system.name, baseline) in gains for baseline in baselines)

    usable = [system for system in systems if not system.sees_answers and is_proved(system)]
    best = max(system.right.value for system in usable)
    good = [system for system in usable if system.right.value >= best - TOLERANCE]
    choice = min(good, key=lambda system: cost_order(system.usd, system.tokens, system.unpriced_calls))
    unpriced = [system.name for system in good if system.unpriced_calls]
    merit = "uses the fewest tokens of the systems" if choice.unpriced_calls else "is the cheapest system"
    reason = (
        f"{choice.name} {merit} within {100 * TOLERANCE:g} percentage points of the best one that can be used "
        f"({choice.right.value:.0%} right, {choice.right.size}){_compare_with_single(choice, systems, gains)}"
    )
    if unpriced:
        reason += f"; what {' and '.join(unpriced)} {'costs' if len(unpriced) == 1 else 'cost'} is not known"
    return choice.name, reason + "".join(
        f"; {system.name} answered more ({system.right.value:.0%}), but calls a planner for each question, and no gain "
        f"over {' and '.join(baseline for baseline in baselines if (system.name, baseline) not in gains)} is shown"
        for system in systems
        if not system.sees_answers and system not in usable and system.right.value > best + TOLERANCE
    )


def _compare_with_single(
    choice: SystemSummary, systems: Sequence[SystemSummary], gains: Container[tuple[str, str]]
) -> str:
    """Continues the reason with what is shown about the best single worker, and what both single workers cost."""
    others = [system for system in systems if not system.sees_answers]
    if choice.name != SINGLE:
        claim = f"; {'a' if (choice.name, SINGLE) in gains else 'no'} gain over {SINGLE} is shown"
    elif max(system.right.value for system in others) == choice.right.value:
        claim = "; no other system answers more"
    else:
        claim = ""
    costs = {system.name: system.cost for system in others if system.name in (SINGLE, CHEAPEST)}
    if choice.name in costs and len(costs) == 2:
        claim += f"; {SINGLE} costs {costs[SINGLE]} per question, and {CHEAPEST} {costs[CHEAPEST]}"
    return claim
