"""RLPR: questions of many fields with short free-form answers."""

from __future__ import annotations

from pathlib import Path

from rl_conductor.scoring import Sample, Score, Split, Task
from rl_conductor_training.tasks.datasets.loading import DataRow, HubDataset, build_task
from rl_conductor_training.tasks.datasets.mathematics import ASK
from rl_conductor_training.tasks.scorers.mathematics import math_equal
from rl_conductor_training.tasks.scorers.text import exact

MAX_ANSWER_CHARS = 30
"""Longer right answers are left out, because they can't be compared (as in the paper's code)."""


def rlpr(path: str | Path | None = None, *, split: Split | None = None, max_chars: int = MAX_ANSWER_CHARS) -> Task:
    """Loads RLPR's training set, from which the paper draws its own splits.

    Args:
        path: a local file to read instead of the hub.
        split: keep one split only, assigned by a hash of the sample ids.
        max_chars: samples with longer right answers are left out.
    """
    data = HubDataset("openbmb/RLPR-Train-Dataset", split="train")
    task = build_task("rlpr", data, _sample, _score, path=path, split=split)
    return task.where(lambda sample: len(sample.answer) <= max_chars)


def _sample(row: DataRow, number: int) -> Sample:
    question = next(turn["content"] for turn in reversed(row["prompt"]) if turn["role"] == "user")
    return Sample(
        id=f"rlpr-{row.get('uid', number)}",
        question=ASK.format(problem=question),
        answer=str(row["reward_model"]["ground_truth"]),
        domain=str(row.get("ability") or "reasoning"),
    )


async def _score(sample: Sample, text: str) -> Score:
    """Scores 1 for the same text or the same value."""
    score = await exact(sample, text)
    return score if score.right else await math_equal(sample, text)
