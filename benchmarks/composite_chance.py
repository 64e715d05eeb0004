"""Plans for the composite questions, picked by chance: a warm start on them learns form, and not which plan is right.

Run with `uv run python benchmarks/composite_chance.py FILE`. Each question gets one of the chains that
`composite_ceiling.py` searches; no model is asked. `warm_start.plans` reads the file, and what is right after such a
warm start, reinforcement learning has found out by itself.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable
from pathlib import Path

from rl_conductor import ScriptedModel, WorkerPool
from rl_conductor.bench.settings import read_settings
from rl_conductor.bench.systems.oracle import Oracle
from rl_conductor.tasks.composite import composite
from rl_conductor.train.lines import write_lines
from rl_conductor.types import Value
from rl_conductor.workflow import Workflow

RECIPE = Path(__file__).parents[1] / "recipes" / "bench-small.toml"
"""Its oracle says which workflows there are."""


class Picked(Value):
    """A line of the file. It has no score, since nobody ran it."""

    question: str
    workflow: Workflow


def picked(questions: Iterable[str]) -> list[Picked]:
    """For each question a chain, all equally likely."""
    oracle = read_settings(RECIPE).systems["oracle"]
    assert isinstance(oracle, Oracle)
    names = {role.worker for role in oracle.roles.values()}
    chains = list(oracle.workflows(WorkerPool(dict.fromkeys(sorted(names), ScriptedModel("nobody is asked")))).values())
    chance = random.Random("0 chance")
    return [Picked(question=question, workflow=chance.choice(chains)) for question in questions]


def main() -> None:
    """Pick and write."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("file", type=Path)
    asked.add_argument("--size", type=int, default=480, help="questions of the training split, in contrast sets")
    asked.add_argument("--seed", type=int, default=1, help="of the questions: training itself meets those of seed 0")
    given = asked.parse_args()
    task = composite("train", size=given.size, seed=given.seed, contrasts=True)
    write_lines(given.file, picked(dict.fromkeys(sample.question for sample in task.samples)))


if __name__ == "__main__":
    main()
