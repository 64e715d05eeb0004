"""Cross-validates a classifier that picks a workflow for each public question, on the results of a bench.

Run these first, after `public_questions.py`:

    uv run rl-conductor bench benchmarks/public_bench.toml --system workers --system find-solve --system rules
    uv run python benchmarks/public_linear.py

The classifier is that of `rl-conductor learn`, a logistic regression on the words of a question. It picks one of the
single workers, or the chain of reader and solver, and is scored by what that workflow answered in the bench. In each
split of the questions into five parts, every part is answered by a classifier that learned from the other four; a
question counts with its mean over the splits. The oracle is right where any of the five is. A second table has what it
takes to learn: classifiers that learned from fewer questions, the same number of each family, are tested on all others.
No model is called.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from rich.console import Console
from rich.table import Table

from rl_conductor import Request, Step, Workflow
from rl_conductor._internal.jsonl import read_lines
from rl_conductor.scoring import Sample
from rl_conductor_training.bench.results import SampleResult
from rl_conductor_training.routing.selector import train_selector
from rl_conductor_training.statistics import Difference, estimate, mean_difference
from rl_conductor_training.tasks import load_task

SINGLE, CHAIN, RULE = "solver", "find-solve", "rules"
CHOICES = ("reader", "small", "coder", SINGLE, CHAIN)
"""The systems of the bench that the classifier picks from, the cheapest first."""
WORKFLOWS = {
    name: Workflow(steps=tuple(Step(subtask="Answer.", worker=worker) for worker in workers))
    for name, workers in ({name: (name,) for name in CHOICES} | {CHAIN: ("reader", "solver")}).items()
}
"""Stands for each of them in the classifier, which does not run it."""
FOLDS = 5
SIZES = (4, 8, 16, 32, 64)
"""Numbers of questions to learn from."""

Scores = Mapping[str, Mapping[str, float]]
"""By system: the score of each question, by its id."""


def read_scores(rows: Path) -> Scores:
    """Reads the newest result of each system on each question."""
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for row in read_lines(rows, SampleResult):
        scores[row.key.system][row.key.sample] = row.value
    return scores


def pick(train: Sequence[Sample], test: Sequence[Sample], scores: Scores) -> dict[str, str]:
    """Trains on some questions and returns the system that is picked for each of the others."""
    right = [[scores[name][sample.id] == 1 for sample in train] for name in CHOICES]
    selector = train_selector([sample.question for sample in train], [WORKFLOWS[name] for name in CHOICES], right)
    names = {workflow: name for name, workflow in WORKFLOWS.items()}
    return {sample.id: names[selector.select(Request.user(sample.question))] for sample in test}


def by_family(questions: Sequence[Sample], generator: random.Random) -> list[list[Sample]]:
    """Returns the questions of each family in a random order."""
    families: dict[str, list[Sample]] = defaultdict(list)
    for question in questions:
        families[question.domain].append(question)
    return [generator.sample(family, len(family)) for family in families.values()]


def cross_validate(questions: Sequence[Sample], scores: Scores, splits: int) -> dict[str, float]:
    """Returns the mean score of each question over the splits, by its id."""
    results: dict[str, list[float]] = defaultdict(list)
    for split in range(splits):
        families = by_family(questions, random.Random(split))
        folds = [[question for family in families for question in family[fold::FOLDS]] for fold in range(FOLDS)]
        for test in folds:
            train = [question for fold in folds if fold is not test for question in fold]
            for name, system in pick(train, test, scores).items():
                results[name].append(scores[system][name])
    return {name: fmean(values) for name, values in results.items()}


def learn_from(size: int, questions: Sequence[Sample], scores: Scores, draws: int) -> list[float]:
    """Returns the share of right answers of classifiers that learned from `size` questions, one for each draw."""
    shares = []
    for draw in range(draws):
        families = by_family(questions, random.Random(draw))
        each = size // len(families)
        train = [question for family in families for question in family[:each]]
        test = [question for family in families for question in family[each:]]
        shares.append(fmean(scores[system][name] for name, system in pick(train, test, scores).items()))
    return shares


def describe(difference: Difference) -> str:
    """Formats a difference with its interval and p-value."""
    return f"{difference.value:+.2f} ({difference.low:+.2f} to {difference.high:+.2f}), p = {difference.p:.3f}"


def print_results(questions: Sequence[Sample], scores: Scores, results: Mapping[str, float]) -> None:
    """Prints what each system answers by family, and the differences over all questions."""
    systems = {"solver": scores[SINGLE], "reader → solver": scores[CHAIN], "one rule": scores[RULE]}
    systems["classifier"] = results
    systems["oracle"] = {question.id: max(scores[name][question.id] for name in CHOICES) for question in questions}
    families = list(dict.fromkeys(question.domain for question in questions))
    table = Table("right answers", *families, "all", box=None, pad_edge=False)
    for name, values in systems.items():
        parts = [[question for question in questions if question.domain == family] for family in families]
        cells = (estimate([values[question.id] for question in part]).formatted for part in [*parts, questions])
        table.add_row(name, *cells)
    console = Console(width=120)
    console.print(table)
    for name in ("solver", "one rule"):
        ours, theirs = ([values[question.id] for question in questions] for values in (results, systems[name]))
        console.print(f"classifier - {name}: {describe(mean_difference(ours, theirs))}")


def main() -> None:
    """Prints the results of the cross-validation, and by the number of questions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, default=Path("runs/public/questions.jsonl"))
    parser.add_argument("--rows", type=Path, default=Path("bench-results/public_bench/rows.jsonl"))
    parser.add_argument("--splits", type=int, default=20)
    args = parser.parse_args()
    questions, scores = load_task(f"jsonl:{args.questions}").samples, read_scores(args.rows)
    print_results(questions, scores, cross_validate(questions, scores, args.splits))
    table = Table("questions learned from", "right answers of the others", box=None, pad_edge=False)
    for size in SIZES:
        shares = learn_from(size, questions, scores, args.splits)
        table.add_row(str(size), f"{fmean(shares):.2f}, standard deviation of the draws {stdev(shares):.2f}")
    Console(width=120).print(table)
    print(f"n = {len(questions)}, {args.splits} splits and draws with the seeds from 0; no model called")


if __name__ == "__main__":
    main()
