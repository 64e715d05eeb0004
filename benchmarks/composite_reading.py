"""Measures which workers a Conductor calls on the composite questions: where their skill is needed, and elsewhere.

Run with `uv run python benchmarks/composite_reading.py runs/composite-chance --every 6` for the plans of a training,
with 6 steps per row, or with a bench's `rows.jsonl` for a row of each pool, task and system. No model is called.
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

from rl_conductor._internal.jsonl import read_lines, read_value
from rl_conductor.types import Value
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.bench.results import SampleResult
from rl_conductor_training.train.config import TrainConfig

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


class PlanLine(Value):
    """The fields of a line of a run's `plans/*.jsonl` that are read here."""

    model_config = ConfigDict(extra="ignore")

    question: str
    workflow: Workflow | None
    score: float | None


@dataclass(frozen=True)
class PlannedQuestion:
    """The workers of a question's plan, and its score."""

    question: str
    skills: frozenset[str]
    workers: tuple[str, ...]
    right: float


def read_run(folder: Path, every: int) -> dict[str, list[PlannedQuestion]]:
    """Reads the plans of a training, grouped by `every` steps."""
    domains = {
        call.question: call.domain for call in read_value(folder / "config.json", TrainConfig).task.build().samples
    }
    groups: dict[str, list[PlannedQuestion]] = defaultdict(list)
    for path in sorted((folder / "plans").glob("*.jsonl")):
        first = (int(path.stem) - 1) // every * every
        groups[f"steps {first + 1} to {first + every}"] += [
            PlannedQuestion(
                call.question,
                frozenset(domains[call.question].split("+")),
                tuple(step.worker for step in call.workflow.steps) if call.workflow else (),
                call.score or 0.0,
            )
            for call in read_lines(path, PlanLine)
        ]
    return groups


def read_bench(rows: Path) -> dict[str, list[PlannedQuestion]]:
    """Reads the rows of a bench over the small pool, grouped by pool, task and system."""
    groups: dict[str, list[PlannedQuestion]] = defaultdict(list)
    for result in read_lines(rows, SampleResult):
        name = f"{result.key.pool}, {result.key.task}, {result.key.system}"
        skills = frozenset(result.domain.split("+"))
        groups[name].append(
            PlannedQuestion(f"{result.key.task} {result.key.sample}", skills, result.workers, result.value)
        )
    return groups


def report(groups: dict[str, list[PlannedQuestion]]) -> Table:
    """Builds a table with a row per group; differences from the first group are paired by question."""
    table = Table("", *COLUMNS)
    first = next(iter(groups.values()))
    for name, calls in groups.items():
        word_calls = [call for call in calls if WORDS in call.skills]
        figure_calls = [call for call in calls if WORDS not in call.skills]
        sum_calls = [call for call in calls if SUM in call.skills]
        other_calls = [call for call in calls if SUM not in call.skills]
        table.add_row(
            name,
            str(len(calls)),
            f"{_share(call.right for call in calls):.2f}",
            "" if calls is first else _difference(first, calls),
            f"{_share(call.right for call in figure_calls):.2f}",
            f"{_share(call.right for call in word_calls):.2f}",
            ", ".join(f"{_coder_share(group):.2f}" for group in (sum_calls, other_calls)),
            ", ".join(f"{_writer_last_share(group):.2f}" for group in (word_calls, figure_calls)),
            f"{_share(len(call.workers) for call in calls):.1f}",
        )
    return table


def _coder_share(calls: list[PlannedQuestion]) -> float:
    return _share("coder" in call.workers for call in calls)


def _writer_last_share(calls: list[PlannedQuestion]) -> float:
    return _share(call.workers[-1:] == ("writer",) for call in calls)


def _share(values: Iterable[float]) -> float:
    return fmean(numbers) if (numbers := list(values)) else float("nan")


def _difference(first: list[PlannedQuestion], calls: list[PlannedQuestion]) -> str:
    """Formats the difference on the questions of both groups, with its standard error."""
    before, after = (_by_question(group) for group in (first, calls))
    differences = [after[question] - before[question] for question in after if question in before]
    if len(differences) < 2:
        return ""
    difference, error = fmean(differences), stdev(differences) / len(differences) ** 0.5
    up, down = (sum(sign * value > 0 for value in differences) for sign in (1, -1))
    return f"{difference:+.3f} ± {error:.3f}, {up} up, {down} down"


def _by_question(calls: list[PlannedQuestion]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for call in calls:
        values[call.question].append(call.right)
    return {question: _share(scores) for question, scores in values.items()}


def main() -> None:
    """Reads the source and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="a run's folder, or a bench's rows.jsonl")
    parser.add_argument("--every", type=int, default=6, help="training steps per row")
    args = parser.parse_args()
    groups = read_run(args.source, args.every) if args.source.is_dir() else read_bench(args.source)
    Console(width=180).print(report(groups))


if __name__ == "__main__":
    main()
