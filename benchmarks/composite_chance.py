"""Writes random plans for the composite questions: a warm start on them teaches the format, not the right plan.

Run with `uv run python benchmarks/composite_chance.py FILE`. Each question gets one of the chains that
`composite_ceiling.py` searches, at random; no model is called. `warm_start.plans` reads the file, so that right plans
after such a warm start are due to reinforcement learning.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable
from pathlib import Path

from rl_conductor import ScriptedModel, WorkerPool
from rl_conductor._internal.jsonl import write_lines
from rl_conductor.types import Value
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.bench.settings import read_settings
from rl_conductor_training.bench.systems.oracle import Oracle
from rl_conductor_training.tasks.composite.questions import composite

RECIPE = Path(__file__).parents[1] / "recipes" / "bench-small.toml"
"""Bench file whose oracle lists the workflows."""


class PlanLine(Value):
    """A line of the file; it has no score, because the plan was not run."""

    question: str
    workflow: Workflow


def draw_plans(questions: Iterable[str]) -> list[PlanLine]:
    """Draws a chain for each question, all equally likely."""
    oracle = read_settings(RECIPE).systems["oracle"]
    assert isinstance(oracle, Oracle)
    names = {role.worker for role in oracle.roles.values()}
    chains = list(oracle.workflows(WorkerPool(dict.fromkeys(sorted(names), ScriptedModel("nobody is asked")))).values())
    generator = random.Random("0 chance")
    return [PlanLine(question=question, workflow=generator.choice(chains)) for question in questions]


def main() -> None:
    """Draws the plans and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", type=int, default=480, help="questions of the training split, in contrast sets")
    parser.add_argument("--seed", type=int, default=1, help="seed of the questions; training uses those of seed 0")
    args = parser.parse_args()
    task = composite("train", size=args.size, seed=args.seed, contrasts=True)
    write_lines(args.file, draw_plans(dict.fromkeys(sample.question for sample in task.samples)))


if __name__ == "__main__":
    main()
