"""Measures the effect of a second round on right and wrong first answers, over several trainings.

Run with `uv run python benchmarks/second_rounds.py bench-results/bench-rounds/rows.jsonl`, the results of
`recipes/bench-rounds.toml`, whose systems are named KIND-SEED and KIND-SEED-recursive. Numbers of a kind are means over
its trainings, for each question. Nothing is called or spent.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from rl_conductor._internal.jsonl import read_lines
from rl_conductor_training.bench.results import SampleResult
from rl_conductor_training.statistics import Difference, estimate, mean_difference

RECURSIVE = "-recursive"
COLUMNS = (
    *("system", "trainings", "one round", "each", "two rounds", "each"),
    *("right answers spoiled", "wrong answers repaired", "accepted", "tokens per question"),
)


@dataclass(frozen=True)
class Training:
    """The results of one training by question, with one and with two rounds."""

    one: dict[str, SampleResult]
    two: dict[str, SampleResult]

    def count(self, *, first: bool, second: bool) -> tuple[int, int]:
        """Counts questions whose first answer is right or wrong, those of them with this second one first."""
        matching = [name for name, row in self.one.items() if (row.value == 1) is first]
        return sum((self.two[name].value == 1) is second for name in matching), len(matching)

    @property
    def accepted(self) -> int:
        """Number of first answers that were accepted: then the second round has no steps."""
        return sum(self.two[name].steps == row.steps for name, row in self.one.items())


def read_trainings(paths: Iterable[Path]) -> dict[str, list[Training]]:
    """Reads the results of a bench, by kind of system."""
    rows: dict[str, dict[str, SampleResult]] = defaultdict(dict)
    for path in paths:
        for row in read_lines(path, SampleResult):
            rows[row.key.system][row.key.sample] = row
    most = max(map(len, rows.values()))
    if unfinished := [f"{name} ({len(results)} of {most})" for name, results in rows.items() if len(results) < most]:
        raise SystemExit(f"finish the bench first; questions are missing of {', '.join(unfinished)}")
    trainings: dict[str, list[Training]] = defaultdict(list)
    for system in (name for name in rows if not name.endswith(RECURSIVE) and name + RECURSIVE in rows):
        kind, _, seed = system.rpartition("-")
        trainings[kind if seed.isdigit() else system].append(Training(rows[system], rows[system + RECURSIVE]))
    return trainings


def question_means(results: Sequence[dict[str, SampleResult]], names: Sequence[str]) -> list[float]:
    """Returns the mean score of each question over the trainings."""
    return [fmean(result[name].value for result in results) for name in names]


def main(paths: Sequence[Path]) -> None:
    """Prints a row for each kind of system, and the comparisons between kinds and rounds."""
    trainings = read_trainings(paths)
    first = next(iter(trainings.values()))[0].one
    names = sorted(first)
    groups = [first[name].group for name in names]
    means = {
        (kind, rounds): question_means([getattr(each, rounds) for each in group], names)
        for kind, group in trainings.items()
        for rounds in ("one", "two")
    }
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for kind, group in trainings.items():
        cells = [kind, str(len(group))]
        for rounds in ("one", "two"):
            whole = estimate(means[kind, rounds], groups)
            cells.append(f"{whole.value:.2f} ± {whole.error:.2f}")
            cells.append(", ".join(f"{fmean(question_means([getattr(each, rounds)], names)):.2f}" for each in group))
        cells += [_fraction(each.count(first=True, second=False) for each in group)]
        cells += [_fraction(each.count(first=False, second=True) for each in group)]
        cells += [_fraction((each.accepted, len(names)) for each in group), _tokens(group)]
        table.add_row(*cells)
    console = Console(width=200)
    console.print(table)
    comparisons = Table("comparison", "difference", "95 % interval", "p", box=None, pad_edge=False)
    for kind in trainings:
        difference = mean_difference(means[kind, "two"], means[kind, "one"], groups)
        comparisons.add_row(f"two rounds against one: {kind}", *_cells(difference))
    for rounds in ("one", "two"):
        for theirs, ours in combinations(trainings, 2):
            difference = mean_difference(means[ours, rounds], means[theirs, rounds], groups)
            title = "one round" if rounds == "one" else "two rounds"
            comparisons.add_row(f"{title}: {ours} against {theirs}", *_cells(difference))
    console.print(comparisons)
    console.print(f"n = {len(names)} in {len(set(groups))} groups, clustered; nothing called or spent", style="dim")


def _fraction(counts: Iterable[tuple[int, int]]) -> str:
    parts = list(counts)
    return f"{sum(part for part, _ in parts)} of {sum(whole for _, whole in parts)}"


def _tokens(group: Sequence[Training]) -> str:
    one = [row.usage.total_tokens for each in group for row in each.one.values()]
    two = [row.usage.total_tokens for each in group for row in each.two.values()]
    return f"{fmean(one):,.0f} and {fmean(two):,.0f}"


def _cells(difference: Difference) -> tuple[str, str, str]:
    return f"{difference.value:+.2f}", f"{difference.low:+.2f} to {difference.high:+.2f}", f"{difference.p:.3f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, nargs="+")
    main(parser.parse_args().rows)
