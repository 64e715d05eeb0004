"""Compares supervised steps, policy gradients and expert iteration (RAFT) on tables of experience.

Run with `uv run python benchmarks/composite_weights.py --train train.jsonl --validation validation.jsonl --out FOLDER`,
on tables that `benchmarks/composite_table.py` wrote. No worker is called: plans are scored by the table. The methods
begin with the same supervised steps. Each is evaluated after its last step, so nothing is selected on the validation
questions. Finished trainings in FOLDER are not repeated, so `--methods` can be run in several processes.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from rl_conductor import Conductor, Limits, Message, Planner, Sampling, Workflow
from rl_conductor._internal.jsonl import read_value, write_value
from rl_conductor.models import model
from rl_conductor.scoring import Sample
from rl_conductor.text.features import text_features
from rl_conductor.types import Roster
from rl_conductor_training.learn.experience import Experience, ExperienceRow
from rl_conductor_training.routing.selector import train_selector
from rl_conductor_training.statistics import estimate, mean_difference
from rl_conductor_training.tasks.composite.questions import composite
from rl_conductor_training.train.reward_table.prompt import PlanPrompt
from rl_conductor_training.train.reward_table.table import ScoredWorkflow, TableQuestion, TableSettings
from rl_conductor_training.train.reward_table.training import (
    STATE_FILE,
    SUPERVISED,
    TableData,
    TableTraining,
    train_on_table,
)
from rl_conductor_training.workers.pool_settings import SmallPool
from rl_conductor_training.workers.reply_cache import ReplyCache

MAX_STEPS, MAX_TOKENS = 4, 160


@dataclass(frozen=True)
class Part:
    """The questions of one split that all workflows ran on."""

    samples: Sequence[Sample]
    rows: dict[str, list[ExperienceRow]]
    """The rows of each question, the cheapest first."""

    @property
    def groups(self) -> list[str]:
        """The template of each question."""
        return [sample.details["group"] for sample in self.samples]

    @property
    def questions(self) -> list[TableQuestion]:
        """The questions for training."""
        return [
            TableQuestion(
                id=sample.id,
                conversation=(Message.user(sample.question),),
                plans=tuple(
                    ScoredWorkflow(workflow=row.workflow, score=row.score)
                    for row in self.rows[sample.id]
                    if row.workflow is not None
                ),
            )
            for sample in self.samples
        ]

    def scores(self, workflows: Sequence[Workflow]) -> list[float]:
        """Returns the score of a workflow for each question."""
        by_id = {(row.sample, row.workflow): row.score for rows in self.rows.values() for row in rows}
        return [by_id[sample.id, workflow] for sample, workflow in zip(self.samples, workflows, strict=True)]


def read_part(split: str, file: Path, size: int) -> Part:
    """Reads the first `size` questions that are complete in a table."""
    return complete_part(composite(split, size=size).samples, file)  # type: ignore[arg-type]


def complete_part(samples: Sequence[Sample], file: Path) -> Part:
    """Reads the questions among `samples` that are complete in a table."""
    rows: dict[str, list[ExperienceRow]] = defaultdict(list)
    for row in Experience(file).rows(samples):
        rows[row.sample].append(row)
    plans = max(map(len, rows.values()))
    complete = [sample for sample in samples if len(rows[sample.id]) == plans]
    return Part(
        complete, {name: sorted(found, key=lambda row: (row.tokens, row.calls)) for name, found in rows.items()}
    )


def build_prompt(name: str, roster: Roster = "cards") -> PlanPrompt:
    """Builds the prompt of a planner of the small pool, in the order of its workers."""
    planner = Planner(
        model=model(name),
        form="lists",
        roster=roster,
        examples=0,
        sampling=Sampling(max_tokens=MAX_TOKENS, temperature=0.0),
    )
    pool = SmallPool().build(ReplyCache(None))
    return PlanPrompt.of(Conductor(planner, pool, limits=Limits(steps=MAX_STEPS)))


def train_method(data: TableData, settings: TableSettings, folder: Path, console: Console) -> TableTraining:
    """Trains one method, from the supervised steps that another method of the same seed has finished."""
    start = time.monotonic()
    finished = next(folder.parent.glob(f"*/{SUPERVISED}/final"), None)
    if finished is not None and not folder.exists():
        source = finished.parents[1]
        shutil.copytree(source / SUPERVISED, folder / SUPERVISED, ignore=shutil.ignore_patterns("checkpoint-*"))
        state = read_value(source / STATE_FILE, TableTraining)
        curve = tuple(point for point in state.curve if point.stage == SUPERVISED)
        state = state.model_copy(update={"settings": settings, "curve": curve, "best": 0, "is_complete": False})
        write_value(folder / STATE_FILE, state)

    def report(text: str) -> None:
        console.print(f"{time.monotonic() - start:6.0f} s  {text}", highlight=False, soft_wrap=True)

    return train_on_table(data, settings, folder, report=report)


def baselines(train: Part, validation: Part) -> dict[str, list[float]]:
    """Scores the best fixed workflow and the linear classifier on validation, both learned on training; the oracle."""
    workflows = [row.workflow for row in train.rows[train.samples[0].id] if row.workflow is not None]
    right = [[score == 1 for score in train.scores([workflow] * len(train.samples))] for workflow in workflows]
    fixed = workflows[max(range(len(workflows)), key=lambda index: sum(right[index]))]
    selector = train_selector([sample.question for sample in train.samples], workflows, right)
    selected = [
        max(zip(workflows, selector.scores, strict=True), key=lambda pair: pair[1].score(features))[0]
        for features in map(text_features, (sample.question for sample in validation.samples))
    ]
    best = [max(row.score for row in validation.rows[sample.id]) for sample in validation.samples]
    return {
        "best fixed": validation.scores([fixed] * len(validation.samples)),
        "linear": validation.scores(selected),
        "oracle": best,
    }


def print_results(results: dict[str, list[float]], groups: Sequence[str], console: Console) -> None:
    """Prints each system with its clustered error, and its difference to the supervised start."""
    for name, scores in results.items():
        mean = estimate(scores, groups)
        line = f"{name:24} {mean.value:.2f} ± {mean.error or 0:.2f}"
        if SUPERVISED in results and name != SUPERVISED:
            gap = mean_difference(scores, results[SUPERVISED], groups)
            line += f"   against supervised {gap.value:+.2f} ({gap.low:+.2f} to {gap.high:+.2f}), p = {gap.p:.3f}"
        console.print(line, highlight=False, soft_wrap=True)


def main() -> None:
    """Trains the missing adapters and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--validation", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=int, default=48, help="maximum questions of each table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=["supervised", "expectation", "raft"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=6, help="questions per step")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--supervised-steps", type=int, default=30)
    args = parser.parse_args()
    console = Console()
    train, validation = (
        read_part(split, file, args.size) for split, file in (("train", args.train), ("validation", args.validation))
    )
    console.print(f"{len(train.samples)} training and {len(validation.samples)} validation questions", highlight=False)
    base = "embedded:smollm2-135m"
    data = TableData(train.questions, validation.questions, build_prompt(base))
    results = baselines(train, validation)
    for method in args.methods:
        settings = TableSettings(
            model=base,
            dtype="bfloat16",
            seed=args.seed,
            method=method,
            steps=args.steps,
            batch=args.batch,
            learning_rate=args.learning_rate,
            supervised_steps=args.supervised_steps,
            evaluate_every=args.steps,
            targets=r".*\.layers\.[12][0-9]\..*_proj",
        )
        state = train_method(data, settings, args.out / f"seed-{args.seed}" / method, console)
        validated = state.curve[-1].validation
        results[method] = list(validated.greedy_scores)
        results[f"{method}, most probable"] = list(validated.preferred_scores)
        results[f"{method}, sampled"] = list(validated.expected_scores)
        console.print(
            f"{method}: {validated.greedy_in_table:.2f} of the greedy plans are in the table, and a sampled one is with"
            f" probability {validated.support:.2f}",
            highlight=False,
            soft_wrap=True,
        )
    print_results(results, validation.groups, console)


if __name__ == "__main__":
    main()
