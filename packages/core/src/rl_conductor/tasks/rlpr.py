"""RLPR: questions of many fields with short answers in free form."""

from __future__ import annotations

from pathlib import Path

from rl_conductor.tasks.base import Sample, Score, Split, Task
from rl_conductor.tasks.mathematics import ASK, same_value
from rl_conductor.tasks.rows import DataRow, HubData, loaded
from rl_conductor.tasks.scorers import exact

MOST_CHARS = 30
"""Longest right answer that is kept: longer ones can't be compared (paper's code)."""


def rlpr(path: str | Path | None = None, *, split: Split | None = None, most_chars: int = MOST_CHARS) -> Task:
    """RLPR's training set, from which the paper draws its own splits; answers longer than `most_chars` are left out."""
    data = HubData("openbmb/RLPR-Train-Dataset", split="train")
    made = loaded("rlpr", data, _sample, _score, path=path, split=split)
    return made.where(lambda sample: len(sample.answer) <= most_chars)


def _sample(row: DataRow, number: int) -> Sample:
    asked = next(turn["content"] for turn in reversed(row["prompt"]) if turn["role"] == "user")
    return Sample(
        id=f"rlpr-{row.get('uid', number)}",
        question=ASK.format(problem=asked),
        answer=str(row["reward_model"]["ground_truth"]),
        domain=str(row.get("ability") or "reasoning"),
    )


async def _score(sample: Sample, text: str) -> Score:
    """The same text, else the same value."""
    score = await exact(sample, text)
    return score if score.right else await same_value(sample, text)
