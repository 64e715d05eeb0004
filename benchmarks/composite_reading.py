"""What a Conductor reads from the composite questions: who is called where he is wanted, and where he is not.

Run with `uv run python benchmarks/composite_reading.py runs/composite-chance --every 6` for the plans of a training, so
many steps a row, or with a bench's `rows.jsonl` for a row of each pool, task and system. Nothing is asked.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from pydantic import ConfigDict
from rich.console import Console
from rich.table import Table

from rl_conductor.bench.rows import Row
from rl_conductor.train.config import TrainConfig
from rl_conductor.train.lines import read_lines, read_value
from rl_conductor.types import Value
from rl_conductor.workflow import Workflow

SUM, WORDS = "compute", "write"
COLUMNS = (
    "plans",
    "right",
    "against the first",
    "for figures",
    "for words",
    "coder: for sums, else",
    "writer last: for words, else",
    "steps",
)


class Line(Value):
    """A line of a run's `plans/*.jsonl`, as far as it matters here."""

    model_config = ConfigDict(extra="ignore")

    question: str
    workflow: Workflow | None
    score: float | None


@dataclass(frozen=True)
class Called:
    """Who was called for a question, and what came of it."""

    question: str
    skills: frozenset[str]
    workers: tuple[str, ...]
    right: float


def of_run(folder: Path, every: int) -> dict[str, list[Called]]:
    """The plans of a training, by so many steps."""
    domains = {one.question: one.domain for one in read_value(folder / "config.json", TrainConfig).task.build().samples}
    groups: dict[str, list[Called]] = defaultdict(list)
    for path in sorted((folder / "plans").glob("*.jsonl")):
        first = (int(path.stem) - 1) // every * every
        groups[f"steps {first + 1} to {first + every}"] += [
            Called(
                one.question,
                frozenset(domains[one.question].split("+")),
                tuple(step.worker for step in one.workflow.steps) if one.workflow else (),
                one.score or 0.0,
            )
            for one in read_lines(path, Line)
        ]
    return groups


def of_bench(rows: Path) -> dict[str, list[Called]]:
    """The rows of a bench whose workers have the small pool's names."""
    groups: dict[str, list[Called]] = defaultdict(list)
    for row in read_lines(rows, Row):
        name = f"{row.key.pool}, {row.key.task}, {row.key.system}"
        skills = frozenset(row.domain.split("+"))
        groups[name].append(Called(f"{row.key.task} {row.key.sample}", skills, row.workers, row.value))
    return groups


def report(groups: dict[str, list[Called]]) -> Table:
    """A row for each group; the difference to the first is question by question."""
    table = Table("", *COLUMNS)
    first = next(iter(groups.values()))
    for name, calls in groups.items():
        worded = [one for one in calls if WORDS in one.skills]
        plain = [one for one in calls if WORDS not in one.skills]
        sums = [one for one in calls if SUM in one.skills]
        others = [one for one in calls if SUM not in one.skills]
        table.add_row(
            name,
            str(len(calls)),
            f"{_share(one.right for one in calls):.2f}",
            "" if calls is first else _difference(first, calls),
            f"{_share(one.right for one in plain):.2f}",
            f"{_share(one.right for one in worded):.2f}",
            ", ".join(f"{_share('coder' in one.workers for one in some):.2f}" for some in (sums, others)),
            ", ".join(f"{_share(one.workers[-1:] == ('writer',) for one in some):.2f}" for some in (worded, plain)),
            f"{_share(len(one.workers) for one in calls):.1f}",
        )
    return table


def _share(values: Iterable[float]) -> float:
    return fmean(each) if (each := list(values)) else float("nan")


def _difference(first: list[Called], calls: list[Called]) -> str:
    """On the questions that both have, with its standard error."""
    before, after = (_by_question(some) for some in (first, calls))
    rises = [after[question] - before[question] for question in after if question in before]
    if len(rises) < 2:
        return ""
    rise, error = fmean(rises), stdev(rises) / len(rises) ** 0.5
    up, down = (sum(sign * one > 0 for one in rises) for sign in (1, -1))
    return f"{rise:+.3f} ± {error:.3f}, {up} up, {down} down"


def _by_question(calls: list[Called]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for one in calls:
        found[one.question].append(one.right)
    return {question: _share(values) for question, values in found.items()}


def main() -> None:
    """Read and print."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("made", type=Path, help="a run's folder, or a bench's rows.jsonl")
    asked.add_argument("--every", type=int, default=6, help="steps of a run in a row")
    given = asked.parse_args()
    groups = of_run(given.made, given.every) if given.made.is_dir() else of_bench(given.made)
    Console(width=180).print(report(groups))


if __name__ == "__main__":
    main()
