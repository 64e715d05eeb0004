"""`jsonl`: a user's own tasks, one JSON object per line with its scoring method."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from rl_conductor._internal.validation import field_errors
from rl_conductor.models import Model
from rl_conductor.scoring import Sample, Score, Scorer, Split, Task
from rl_conductor.text.truncation import truncate_middle
from rl_conductor.types import Value
from rl_conductor_training.tasks.datasets.loading import DataRow, HubDataset, build_task
from rl_conductor_training.tasks.scorers.judge import Judge, load_judge
from rl_conductor_training.tasks.scorers.mathematics import math_equal
from rl_conductor_training.tasks.scorers.programs import passes_tests
from rl_conductor_training.tasks.scorers.text import exact, numeric, regex

SCORERS: dict[str, Scorer] = {
    "exact": exact,
    "numeric": numeric,
    "math": math_equal,
    "regex": regex,
    "code": passes_tests,
}

_WITH_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
MAX_NAMES, MAX_NAME_CHARS = 8, 40
"""Maximum number of a row's names that an error quotes, and of characters of each."""


class ProgramTest(Value):
    """The input of a program and its expected output."""

    stdin: str = ""
    stdout: str


class TaskLine(Value, coerce_numbers_to_str=True):
    """One line of the file: a question and its scoring method."""

    unknown_fields: ClassVar = {
        **dict.fromkeys(
            ("category", "topic", "kategorie", "thema"),
            "there is no such setting; rename it to domain, which is the kind of the question, or remove it",
        ),
        **dict.fromkeys(
            (
                "expected",
                "expected answer",
                "expected_answer",
                "ground_truth",
                "ideal",
                "reference",
                "target",
                "antwort",
            ),
            "there is no such setting; rename it to answer, which is the right one, or remove it",
        ),
        **dict.fromkeys(
            ("comment", "comments", "note", "notes", "kommentar", "notiz"), "there is no such setting; remove it"
        ),
    }
    question: str = Field(min_length=1)
    answer: str = ""
    """The right answer; for `regex` a pattern."""
    scoring: Literal["exact", "numeric", "math", "regex", "code", "judge"] = "exact"
    """By default `judge` with a rubric, `exact` without one."""
    rubric: str = ""
    """For `judge`: what a reply has to fulfil, instead of a right answer."""
    id: str | None = None
    domain: str = ""
    depth: int | None = None
    contrast: str = ""
    group: str = ""
    """Questions of one template or source, which `rl-conductor learn` never splits between training and test."""
    tolerance: float | None = Field(default=None, ge=0)
    """For `numeric`: maximum relative difference."""
    tests: str | None = None
    """For `code`: Python appended to the program, which fails when the program is wrong."""
    cases: tuple[ProgramTest, ...] | None = None
    """For `code`: inputs and expected outputs, instead of `tests`."""

    @model_validator(mode="before")
    @classmethod
    def _judge_by_rubric(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {"scoring": "judge", **fields} if "rubric" in fields else fields

    @model_validator(mode="after")
    def _check_scoring_requirements(self) -> Self:
        if self.rubric and (self.scoring != "judge" or self.answer):
            raise ValueError("a rubric needs scoring 'judge' and no answer; write what is right into the rubric")
        if self.scoring == "code" and not (self.tests or self.cases):
            raise ValueError("scoring 'code' needs tests or cases")
        if self.scoring != "code" and not (self.answer or self.rubric):
            rubric = " or a rubric" if self.scoring == "judge" else ", or a rubric for a judge"
            raise ValueError(f"scoring {self.scoring!r} needs an answer{rubric}")
        if self.scoring == "numeric" and not _is_number(self.answer):
            raise ValueError(f"scoring 'numeric' needs a number as answer, such as 3.5 or 1,290, not {self.answer!r}")
        if self.scoring == "regex":
            try:
                re.compile(self.answer)
            except re.error as error:
                raise ValueError(f"{self.answer!r} is no regular expression: {error}") from error
        return self

    def sample(self, number: int) -> Sample:
        """Converts the line to a sample; `number` is its id if it has none."""
        details: dict[str, Any] = self.model_dump(include={"scoring", "tolerance", "tests", "cases"}, exclude_none=True)
        details |= {name: value for name in ("rubric", "group") if (value := getattr(self, name))}
        return Sample(
            id=self.id or str(number),
            question=self.question,
            answer=self.answer,
            domain=self.domain,
            depth=self.depth,
            contrast=self.contrast,
            details=details,
        )


def jsonl(path: str | Path, *, judge: Model | str | None = None, split: Split | None = None) -> Task:
    """Loads a file of tasks.

    Args:
        path: one JSON object per line, with the keys of `TaskLine`.
        judge: the model that scores lines with scoring `judge`, as for `load_judge`.
        split: keep one split only, assigned by a hash of the ids, or of the line numbers without ids.

    Raises:
        ConfigError: the file does not exist, a line is invalid, or a line needs a judge and none was passed.
    """
    judge_model = None if judge is None else load_judge(judge)
    judge_scorer = None if judge_model is None else Judge(judge_model)

    async def score(sample: Sample, text: str) -> Score:
        kind = sample.details["scoring"]
        scorer = judge_scorer if kind == "judge" else SCORERS[kind]
        assert scorer is not None
        return await scorer(sample, text)

    def convert(row: DataRow, number: int) -> Sample:
        sample = _sample(row, number)
        if sample.details["scoring"] != "judge":
            return sample
        if judge_model is None:
            raise ValueError("scoring 'judge' needs a model: judge='provider:model', or --judge provider:model")
        # Results are stored by sample, so another judge scores again.
        return sample.model_copy(update={"details": {**sample.details, "judge": judge_model.name}})

    task = build_task(Path(path).stem, HubDataset(str(path)), convert, score, path=path, split=split)
    return replace(task, judge_price=None if judge_model is None else judge_model.price)


def _sample(row: DataRow, number: int) -> Sample:
    names = {key.strip().lower(): value for key, value in row.items()}
    filled = {name: value for name, value in names.items() if not _is_unset(value)}
    if "question" not in names:
        quoted = ", ".join(truncate_middle(name, MAX_NAME_CHARS) for name in list(names)[:MAX_NAMES])
        raise ValueError(f"there is no question; the names must be question, answer and others, not {quoted}")
    try:
        return TaskLine.model_validate(filled).sample(number)
    except ValidationError as error:
        raise ValueError("; ".join(map(str, field_errors(error, model=TaskLine)))) from error


def _is_unset(value: object) -> bool:
    """Whether a cell is empty; CSV has no other form of unset."""
    return value is None or (isinstance(value, str) and not value.strip())


def _is_number(text: str) -> bool:
    """Whether the text is a number with a decimal point, in which commas stand between thousands only."""
    if "," in text and not _WITH_THOUSANDS.fullmatch(text.strip()):
        return False
    try:
        return Decimal(text.replace(",", "")).is_finite()
    except InvalidOperation:
        return False
