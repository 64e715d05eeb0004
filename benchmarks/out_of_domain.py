"""Measures which requests learned workflows leave to the planner: 60 ordinary requests, and questions of their domain.

Run with `uv run python benchmarks/out_of_domain.py`. The domain is trained on a part of each task, by group; the other
part is what it should include. `out_of_domain.txt` was written before any measurement and is not used for training. No
model is called.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from math import sqrt
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rl_conductor.planning.routing.domain import Domain
from rl_conductor.types import Request
from rl_conductor_training.routing.domain import train_domain
from rl_conductor_training.tasks import Sample, load_task
from rl_conductor_training.tasks.composite.questions import composite
from rl_conductor_training.tasks.groups import group_of

ROOT = Path(__file__).parents[1]
REQUESTS = (Path(__file__).parent / "out_of_domain.txt").read_text("utf-8").splitlines()
ORDINARY = [line.partition(": ")[2] for line in REQUESTS]  # after the kind of request
TRAINING_SHARE = 0.7
SEEDS = range(5)


def split(samples: Sequence[Sample], seed: int) -> tuple[list[Sample], list[Sample]]:
    """Splits questions by group into those to train on and others."""
    groups = sorted({group_of(sample) for sample in samples})
    random.Random(seed).shuffle(groups)
    known = set(groups[: round(len(groups) * TRAINING_SHARE)])
    return [sample for sample in samples if group_of(sample) in known], [
        sample for sample in samples if group_of(sample) not in known
    ]


def train(samples: Sequence[Sample]) -> Domain:
    """Trains the domain of these questions."""
    return train_domain([sample.question for sample in samples], [group_of(sample) for sample in samples])


def included(domain: Domain, questions: Sequence[str]) -> str:
    """Returns the share of the questions that are in the domain, with its standard error."""
    count = len(questions)
    share = sum(domain.includes(Request.user(question)) for question in questions) / count
    return f"{share:.2f} ± {sqrt(share * (1 - share) / count):.2f} (n = {count})"


def main() -> None:
    """Prints the shares that are included."""
    table = Table("domain", "questions", "of other groups", "ordinary requests")
    town = composite("train", size=80).samples
    worded = composite("validation", size=60, wordings=5).samples
    for name, others in (
        ("composite, held-out templates", composite("heldout", size=60).samples),
        ("composite, other wordings", worded),
    ):
        domain = train(town)
        table.add_row(name, str(len(town)), included(domain, [s.question for s in others]), included(domain, ORDINARY))
    wiki = load_task(f"jsonl:{ROOT / 'examples' / 'wiki' / 'questions.jsonl'}").samples
    for seed in SEEDS:
        known, unseen = split(wiki, seed)
        domain = train(known)
        shares = included(domain, [s.question for s in unseen]), included(domain, ORDINARY)
        table.add_row(f"wiki, split {seed}", str(len(known)), *shares)
    Console().print(table)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
