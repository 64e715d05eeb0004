"""`jsonl`: a user's own tasks, one JSON object per line with its scoring method."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from rl_conductor._internal.validation import field_errors
from rl_conductor.errors import ConfigError
from rl_conductor.models import Model
from rl_conductor.scoring import Sample, Score, Scorer, Split, Task
from rl_conductor.text.truncation import truncate_middle
from rl_conductor.types import Value
from rl_conductor_training.tasks.datasets.loading import DataRow, HubDataset, build_task
from rl_conductor_training.tasks.scorers.accepted import ACCEPTED, accept_any, accepted_answers
from rl_conductor_training.tasks.scorers.answers import normalize_text
from rl_conductor_training.tasks.scorers.dates import is_date, same_date
from rl_conductor_training.tasks.scorers.json_answers import json_equal, parse_json
from rl_conductor_training.tasks.scorers.judge import Judge, load_judge
from rl_conductor_training.tasks.scorers.mathematics import math_equal
from rl_conductor_training.tasks.scorers.programs import passes_tests
from rl_conductor_training.tasks.scorers.text import choice, exact, includes, numeric, regex

Scoring = Literal["exact", "includes", "choice", "numeric", "date", "json", "math", "regex", "code", "judge"]
SCORERS: dict[Scoring, Scorer] = {
    "exact": accept_any(exact),
    "includes": accept_any(includes),
    "choice": accept_any(choice),
    "numeric": accept_any(numeric),
    "date": accept_any(same_date),
    "json": json_equal,
    "math": accept_any(math_equal),
    "regex": accept_any(regex),
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
                "accepted",
                "answers",
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
            ("classes", "labels", "options"),
            "there is no such setting; rename it to choices, which is a list of all labels, or remove it",
        ),
        **dict.fromkeys(
            ("comment", "comments", "note", "notes", "kommentar", "notiz"), "there is no such setting; remove it"
        ),
    }
    question: str = Field(min_length=1)
    answer: tuple[str, ...] = ()
    """The right answer, or several of which each is right; for `regex` a pattern, for `json` one value of any kind."""
    scoring: Scoring = "exact"
    """By default `judge` with a rubric, `choice` with choices, else `exact`."""
    rubric: str = ""
    """For `judge`: what a reply has to fulfil, instead of a right answer."""
    id: str | None = None
    domain: str = ""
    depth: int | None = None
    contrast: str = ""
    group: str = ""
    """Questions of one template or source, which `rl-conductor learn` never splits between training and test."""
    choices: tuple[str, ...] | None = Field(default=None, min_length=2)
    """For `choice`: all labels; by default all answers of the file with this scoring."""
    tolerance: float | None = Field(default=None, ge=0)
    """For `numeric`: maximum relative difference."""
    tests: str | None = None
    """For `code`: Python appended to the program, which fails when the program is wrong."""
    cases: tuple[ProgramTest, ...] | None = None
    """For `code`: inputs and expected outputs, instead of `tests`."""

    @model_validator(mode="before")
    @classmethod
    def _choose_scoring(cls, fields: dict[str, Any]) -> dict[str, Any]:
        default = "judge" if "rubric" in fields else "choice" if "choices" in fields else "exact"
        fields = {"scoring": default, **fields}
        if fields["scoring"] == "json" and "answer" in fields:
            fields["answer"] = [_to_json(fields["answer"])]
        return fields

    @field_validator("answer", mode="before")
    @classmethod
    def _list_answers(cls, answer: object) -> list[object]:
        answers = answer if isinstance(answer, list) else [answer]
        for each in answers:
            if isinstance(each, bool) or not isinstance(each, str | int | float | Decimal):
                problem = f"write text or a number, a list of them, or scoring 'json', not {each!r:.60}"
                raise ValueError(problem)  # noqa: TRY004 (pydantic reports no TypeError)
            if _is_unset(each):
                raise ValueError("one of the accepted answers is empty; remove it")
        return answers

    @model_validator(mode="after")
    def _check_scoring_requirements(self) -> Self:
        if self.rubric and (self.scoring != "judge" or self.answer):
            raise ValueError("a rubric needs scoring 'judge' and no answer; write what is right into the rubric")
        if self.scoring == "code" and not (self.tests or self.cases):
            raise ValueError("scoring 'code' needs tests or cases")
        if self.scoring != "code" and not (self.answer or self.rubric):
            rubric = " or a rubric" if self.scoring == "judge" else ", or a rubric for a judge"
            raise ValueError(f"scoring {self.scoring!r} needs an answer{rubric}")
        if self.scoring == "judge" and len(self.answer) > 1:
            raise ValueError("scoring 'judge' compares with one answer; write one, or what is accepted as a rubric")
        if self.choices is not None:
            self._check_choices(self.choices)
        for answer in self.answer:
            self._check_answer(answer)
        return self

    def _check_choices(self, choices: Collection[str]) -> None:
        if self.scoring != "choice":
            raise ValueError(f"choices belong to scoring 'choice', not {self.scoring!r}; remove one of the two")
        names = set(map(normalize_text, choices))
        if "" in names or len(names) < len(choices):
            raise ValueError(
                f"choices must be different labels with letters or digits, not {', '.join(map(repr, choices))}"
            )
        if unknown := [answer for answer in self.answer if normalize_text(answer) not in names]:
            raise ValueError(f"the answer {unknown[0]!r} is none of the choices: {', '.join(map(repr, choices))}")

    def _check_answer(self, answer: str) -> None:
        if self.scoring in ("includes", "choice") and not normalize_text(answer):
            raise ValueError(f"scoring {self.scoring!r} needs an answer with letters or digits, not {answer!r}")
        if self.scoring == "numeric" and not _is_number(answer):
            raise ValueError(
                f"scoring 'numeric' needs a number with a decimal point as answer, such as 3.5 or 1,290, not {answer!r}"
            )
        if self.scoring == "date" and not is_date(answer):
            raise ValueError(f"scoring 'date' needs a date as answer, such as 2026-03-05, not {answer!r}")
        if self.scoring == "json":
            try:
                parse_json(answer)
            except ValueError as error:
                raise ValueError(
                    f"scoring 'json' needs JSON as answer, such as {{\"age\": 3}}, not {answer!r:.60}: {error}"
                ) from error
        if self.scoring == "regex":
            try:
                re.compile(answer)
            except re.error as error:
                raise ValueError(f"{answer!r} is no regular expression: {error}") from error

    def sample(self, number: int) -> Sample:
        """Converts the line to a sample; `number` is its id if it has none."""
        names = {"scoring", "choices", "tolerance", "tests", "cases"}
        details: dict[str, Any] = self.model_dump(include=names, exclude_none=True)
        details |= {name: value for name in ("rubric", "group") if (value := getattr(self, name))}
        if len(self.answer) > 1:
            details[ACCEPTED] = self.answer
        return Sample(
            id=self.id or str(number),
            question=self.question,
            answer=self.answer[0] if self.answer else "",
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
    labels: set[str] = set()

    async def score(sample: Sample, text: str) -> Score:
        kind = sample.details["scoring"]
        scorer = judge_scorer if kind == "judge" else SCORERS[kind]
        assert scorer is not None
        return await scorer(sample, text)

    def convert(row: DataRow, number: int) -> Sample:
        sample = _sample(row, number)
        if _needs_choices(sample):
            labels.update(accepted_answers(sample))
        if sample.details["scoring"] != "judge":
            return sample
        if judge_model is None:
            raise ValueError("scoring 'judge' needs a model: judge='provider:model', or --judge provider:model")
        # Results are stored by sample, so another judge scores again.
        return sample.model_copy(update={"details": {**sample.details, "judge": judge_model.name}})

    task = build_task(Path(path).stem, HubDataset(str(path)), convert, score, path=path, split=split)
    samples = _add_choices(task.samples, labels, path)
    return replace(task, samples=samples, judge_price=None if judge_model is None else judge_model.price)


def _needs_choices(sample: Sample) -> bool:
    return sample.details["scoring"] == "choice" and "choices" not in sample.details


def _add_choices(samples: Iterable[Sample], labels: Collection[str], path: str | Path) -> tuple[Sample, ...]:
    """Adds the labels of all questions of a file to those with scoring `choice` that have none of their own."""
    if len(set(map(normalize_text, labels))) == 1:
        raise ConfigError(
            f"all questions of {str(path)!r} with scoring 'choice' have the answer {next(iter(labels))!r}; write the "
            'other labels, too, such as "choices": ["yes", "no"]'
        )
    choices = {"choices": tuple(sorted(labels))}
    return tuple(
        sample.model_copy(update={"details": {**sample.details, **choices}}) if _needs_choices(sample) else sample
        for sample in samples
    )


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


def _to_json(answer: object) -> str:
    """Returns an answer as JSON; text is JSON already, as in a table."""
    if isinstance(answer, str):
        return answer
    try:
        return json.dumps(answer, ensure_ascii=False)
    except TypeError as error:
        raise ValueError(f"scoring 'json' needs JSON as answer: {error}") from error


def _is_number(text: str) -> bool:
    """Whether the text is a number with a decimal point, in which commas stand between thousands only."""
    if "," in text and not _WITH_THOUSANDS.fullmatch(text.strip()):
        return False
    try:
        return Decimal(text.replace(",", "")).is_finite()
    except InvalidOperation:
        return False
