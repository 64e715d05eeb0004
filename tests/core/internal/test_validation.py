from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError, field_validator, model_validator

from rl_conductor._internal.validation import first_problem, problems


class Part(BaseModel):
    size: int
    name: str = ""

    @field_validator("name")
    @classmethod
    def _short(cls, name: str) -> str:
        if len(name) > 3:
            raise ValueError("write at most 3 letters")
        return name


class Whole(BaseModel):
    parts: dict[str, Part]

    @model_validator(mode="after")
    def _has_parts(self) -> Whole:
        if not self.parts:
            raise ValueError("name a part")
        return self


def refused(given: object) -> ValidationError:
    with pytest.raises(ValidationError) as raised:
        Whole.model_validate(given)
    return raised.value


def test_each_problem_tells_where_it_is_and_our_own_words_stand_alone() -> None:
    error = refused({"parts": {"a": {"size": "big", "name": "long"}}})
    size, name = problems(error)
    assert str(size).startswith("parts.a.size: Input should be a valid integer")
    assert str(name) == "parts.a.name: write at most 3 letters"
    assert (first_problem(error), name.given) == (size, "long")
    assert str(problems(error, below=2)[1]) == "name: write at most 3 letters"


def test_a_problem_of_the_whole_is_at_no_place() -> None:
    assert str(first_problem(refused({"parts": {}}))) == "name a part"


def test_what_was_given_is_no_part_of_the_text() -> None:
    assert "hunter2" not in str(first_problem(refused({"parts": {"a": {"size": "hunter2"}}})))
