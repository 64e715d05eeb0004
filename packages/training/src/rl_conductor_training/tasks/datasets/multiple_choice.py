"""GPQA-Diamond and MMLU: multiple choice, answered by a letter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from rl_conductor.scoring import Sample, Split, Task
from rl_conductor_training.tasks.datasets.loading import DataRow, HubDataset, build_task
from rl_conductor_training.tasks.scorers.text import multiple_choice

LETTERS = "ABCDEFGHIJ"
ASK = '{question}\n\n{options}\n\nEnd your reply with "Answer: " and the letter of the right answer.'


def gpqa_diamond(path: str | Path | None = None, *, split: Split | None = None) -> Task:
    """Loads GPQA-Diamond, 198 questions by experts; on the hub one has to accept its terms first."""
    data = HubDataset("Idavidrein/gpqa", "gpqa_diamond", "train")
    return build_task("gpqa-diamond", data, _gpqa_sample, multiple_choice, path=path, split=split)


def mmlu(path: str | Path | None = None, *, split: Split | None = None, part: str = "test") -> Task:
    """Loads MMLU, questions of 57 subjects.

    Args:
        path: a local file to read instead of the hub.
        split: keep one split only, assigned by a hash of the sample ids.
        part: the hub's own split: `test`, `validation` or `auxiliary_train` (the paper trains on the last).
    """
    return build_task(
        "mmlu", HubDataset("cais/mmlu", "all", part), _mmlu_sample, multiple_choice, path=path, split=split
    )


def _gpqa_sample(row: DataRow, number: int) -> Sample:
    right = row["Correct Answer"].strip()
    options = [right, *(row[f"Incorrect Answer {i}"].strip() for i in (1, 2, 3))]
    name = str(row.get("Record ID") or f"gpqa-{number}")
    random.Random(name).shuffle(options)  # noqa: S311 (the data lists the right option first)
    return _choice_sample(name, row["Question"].strip(), options, options.index(right), domain="science")


def _mmlu_sample(row: DataRow, number: int) -> Sample:
    subject = row.get("subject") or "mixed"
    return _choice_sample(
        f"mmlu-{subject}-{number}", row["question"], row["choices"], int(row["answer"]), domain="knowledge"
    )


def _choice_sample(name: str, question: str, options: Sequence[str], right: int, *, domain: str) -> Sample:
    """Builds a question with lettered options; `right` is the index of the right one."""
    letters = LETTERS[: len(options)]
    lettered = "\n".join(f"{letter}) {option}" for letter, option in zip(letters, options, strict=True))
    return Sample(
        id=name,
        question=ASK.format(question=question, options=lettered),
        answer=letters[range(len(options))[right]],
        domain=domain,
        details={"letters": letters},
    )
