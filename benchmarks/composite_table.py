"""Writes the table of experience of the composite questions: the score of each chain of the search on each question.

Run with `uv run python benchmarks/composite_table.py --split train --size 48 --out table`. It runs the small pool's
models in process, with the usual executor, and spends nothing. Rows are appended as they arrive, and replies are cached
in `--cache`, so that an interrupted table is continued.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import get_args

from rich.console import Console

from rl_conductor import Conductor, ScriptedModel, Workflow
from rl_conductor.scoring import Task
from rl_conductor_training.bench.settings import read_settings
from rl_conductor_training.bench.systems.workflow_list import WorkflowList
from rl_conductor_training.learn.experience import Experience, ExperienceRow, ScoreTable, fingerprint_workers
from rl_conductor_training.learn.runner import Runner
from rl_conductor_training.tasks.composite.questions import TemplateSet, composite
from rl_conductor_training.workers.pool_settings import SmallPool
from rl_conductor_training.workers.reply_cache import ReplyCache

RECIPE = Path(__file__).parents[1] / "recipes" / "bench-baselines.toml"
"""Bench file whose system `fixed` lists the workflows of the table."""


async def write_table(
    task: Task, path: Path, cache: Path, threads: int, console: Console
) -> tuple[ScoreTable, list[Workflow]]:
    """Runs every workflow on every question, one question after the other."""
    replies = ReplyCache(cache)
    pool = SmallPool(threads=threads).build(replies)
    fixed = read_settings(RECIPE).systems["fixed"]
    assert isinstance(fixed, WorkflowList)
    workflows = list(fixed.workflows(pool).values())
    experience = Experience(path)
    start = time.monotonic()

    def report(row: ExperienceRow) -> None:
        console.print(
            f"{len(experience):4} rows {time.monotonic() - start:6.0f} s  {row.sample:20} {row.score:g}",
            highlight=False,
        )

    runner = Runner(
        task=task,
        conductor=Conductor(ScriptedModel("no plan is ever asked for"), pool),
        experience=experience,
        workers=fingerprint_workers(pool, {}),
        concurrency=1,
        on_row=report,
    )
    try:
        await runner.run_workflows((sample, workflow) for sample in task.samples for workflow in workflows)
    finally:
        await replies.aclose()
    return ScoreTable(experience.rows(task.samples), task.samples), workflows


def main() -> None:
    """Runs the workflows and prints the accuracy of each, and that of the oracle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", default="train", choices=("train", "validation", "heldout"))
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--templates", default="usual", choices=get_args(TemplateSet))
    parser.add_argument("--wordings", type=int, default=1, help="wordings of each text, except in the held-out split")
    parser.add_argument("--contrasts", action="store_true", help="ask everything for figures and for words")
    parser.add_argument("--out", type=Path, default=Path("composite-table.jsonl"))
    parser.add_argument("--cache", type=Path, default=Path("composite-replies.sqlite"))
    parser.add_argument("--threads", type=int, default=1, help="threads of the model, at most the idle cores")
    args = parser.parse_args()
    console = Console()
    task = composite(
        args.split,
        size=args.size,
        seed=args.seed,
        wordings=args.wordings,
        contrasts=args.contrasts,
        templates=args.templates,
    )
    table, workflows = asyncio.run(write_table(task, args.out, args.cache, args.threads, console))
    for workflow in workflows:
        steps = " → ".join(step.worker for step in workflow.steps)
        console.print(f"{table.mean(workflow):.2f}  {steps}", highlight=False)
    right = sum(bool(table.best_rows(sample)) for sample in task.samples)
    console.print(f"{right / len(task.samples):.2f}  oracle, n = {len(task.samples)}", highlight=False)


if __name__ == "__main__":
    main()
