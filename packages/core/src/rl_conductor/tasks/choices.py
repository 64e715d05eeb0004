"""GPQA-Diamond and MMLU: one right answer of several, by letter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from rl_conductor.tasks.base import Sample, Split, Task
from rl_conductor.tasks.rows import DataRow, HubData, loaded
from rl_conductor.tasks.scorers import multiple_choice

LETTERS = "ABCDEFGHIJ"
ASK = '{question}\n\n{options}\n\nEnd your reply with "Answer: " and the letter of the right answer.'


def gpqa_diamond(path: str | Path | None = None, *, split: Split | None = None) -> Task:
    """198 questions that experts wrote for experts. On the hub one has to accept its terms first."""
    data = HubData("Idavidrein/gpqa", "gpqa_diamond", "train")
    return loaded("gpqa-diamond", data, _gpqa, multiple_choice, path=path, split=split)


def mmlu(path: str | Path | None = None, *, split: Split | None = None, part: str = "test") -> Task:
    """Questions of 57 subjects. `part` is the hub's own: `test`, `validation`, `auxiliary_train` (paper, training)."""
    return loaded("mmlu", HubData("cais/mmlu", "all", part), _mmlu, multiple_choice, path=path, split=split)


def _gpqa(row: DataRow, number: int) -> Sample:
    right = row["Correct Answer"].strip()
    options = [right, *(row[f"Incorrect Answer {i}"].strip() for i in (1, 2, 3))]
    name = str(row.get("Record ID") or f"gpqa-{number}")
    random.Random(name).shuffle(options)  # noqa: S311 (else the right one is always the first)
    return multiple(name, row["Question"].strip(), options, options.index(right), domain="science")


def _mmlu(row: DataRow, number: int) -> Sample:
    subject = row.get("subject") or "mixed"
    return multiple(f"mmlu-{subject}-{number}", row["question"], row["choices"], int(row["answer"]), domain="knowledge")


def multiple(name: str, question: str, options: Sequence[str], right: int, *, domain: str) -> Sample:
    """A question with lettered options, of which the one at position `right` is right."""
    letters = LETTERS[: len(options)]
    told = "\n".join(f"{letter}) {option}" for letter, option in zip(letters, options, strict=True))
    return Sample(
        id=name,
        question=ASK.format(question=question, options=told),
        answer=letters[range(len(options))[right]],
        domain=domain,
        details={"letters": letters},
    )
