from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError, field_validator, model_validator

from rl_conductor._internal.validation import field_errors, first_field_error


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


def test_field_errors_have_paths_and_messages_of_validators_lose_their_prefix() -> None:
    error = refused({"parts": {"a": {"size": "big", "name": "long"}}})
    size, name = field_errors(error)
    assert str(size).startswith("parts.a.size: Input should be a valid integer")
    assert str(name) == "parts.a.name: write at most 3 letters"
    assert (first_field_error(error), name.value) == (size, "long")
    assert str(field_errors(error, below=2)[1]) == "name: write at most 3 letters"


def test_an_error_of_the_whole_value_has_no_path() -> None:
    assert str(first_field_error(refused({"parts": {}}))) == "name a part"


def test_the_input_is_not_in_the_message() -> None:
    assert "hunter2" not in str(first_field_error(refused({"parts": {"a": {"size": "hunter2"}}})))
