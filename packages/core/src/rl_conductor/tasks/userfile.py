"""A user's own tasks: a file with one JSON object a line, and how each is scored."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from rl_conductor.errors import ConfigError
from rl_conductor.invalid import problems
from rl_conductor.models import Model, model
from rl_conductor.tasks.base import Sample, Score, Scorer, Split, Task
from rl_conductor.tasks.coding import tested
from rl_conductor.tasks.judging import Judge
from rl_conductor.tasks.mathematics import same_value
from rl_conductor.tasks.rows import DataRow, HubData, loaded
from rl_conductor.tasks.scorers import checked_pattern, exact, numeric, regex
from rl_conductor.types import Value

SCORERS: dict[str, Scorer] = {"exact": exact, "numeric": numeric, "math": same_value, "regex": regex, "code": tested}


class Case(Value):
    """A test of a program: what it reads and what it must write."""

    stdin: str = ""
    stdout: str


class Entry(Value):
    """A line of the file."""

    question: str = Field(min_length=1)
    answer: str = ""
    """The right answer; a pattern for `regex`; for `judge` also what a right answer must say."""
    scoring: Literal["exact", "numeric", "math", "regex", "code", "judge"] = "exact"
    id: str | None = None
    domain: str = ""
    depth: int | None = None
    contrast: str = ""
    tolerance: float | None = Field(default=None, ge=0)
    """For `numeric`: the share of the right number by which an answer may differ."""
    tests: str | None = None
    """For `code`: Python that fails when the program before it is wrong."""
    cases: tuple[Case, ...] | None = None
    """For `code`: inputs and outputs, in place of `tests`."""

    @model_validator(mode="after")
    def _has_what_its_scoring_needs(self) -> Self:
        if self.scoring == "code" and not (self.tests or self.cases):
            raise ValueError("scoring 'code' needs tests or cases")
        if self.scoring != "code" and not self.answer:
            raise ValueError(f"scoring {self.scoring!r} needs an answer")
        if self.scoring == "numeric" and not _is_number(self.answer):
            raise ValueError(f"scoring 'numeric' needs a number as answer, not {self.answer!r}")
        if self.scoring == "regex":
            checked_pattern(self.answer)
        return self

    def sample(self, number: int) -> Sample:
        """The sample that it describes."""
        details: dict[str, Any] = self.model_dump(include={"scoring", "tolerance", "tests", "cases"}, exclude_none=True)
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
    """The tasks of a file.

    Args:
        path: one JSON object a line, with the keys of `Entry`.
        judge: the model, or its `provider:model`, that scores lines with scoring `judge`.
        split: one part of it only, by a hash of the ids; without ids of your own, of the lines' numbers.

    Raises:
        ConfigError: the file is not there, a line is wrong, or a judge is needed and none is given.
    """
    asked = Judge(model(judge) if isinstance(judge, str) else judge) if judge is not None else None

    async def score(sample: Sample, text: str) -> Score:
        kind = sample.details["scoring"]
        scorer = asked if kind == "judge" else SCORERS[kind]
        assert scorer is not None
        return await scorer(sample, text)

    made = loaded(Path(path).stem, HubData(str(path)), _sample, score, path=path, split=split)
    if asked is None and any(sample.details["scoring"] == "judge" for sample in made.samples):
        raise ConfigError(f"{str(path)!r} has tasks with scoring 'judge'; name a model as judge='provider:model'")
    return made


def _sample(row: DataRow, number: int) -> Sample:
    try:
        return Entry.model_validate(row).sample(number)
    except ValidationError as error:
        raise ValueError("; ".join(map(str, problems(error)))) from error


def _is_number(text: str) -> bool:
    try:
        return Decimal(text.replace(",", "")).is_finite()
    except InvalidOperation:
        return False
