from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError, field_validator, model_validator

from rl_conductor._internal.validation import field_errors, first_field_error


class Part(BaseModel, extra="forbid"):
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


def test_an_unknown_setting_is_answered_with_the_one_that_resembles_it_or_with_all() -> None:
    error = refused({"parts": {"a": {"size": 1, "nam": "x"}, "b": {"size": 1, "weight": 2}}})
    assert list(map(str, field_errors(error, model=Whole))) == [
        "parts.a.nam: there is no such setting; did you mean 'name'?",
        "parts.b.weight: there is no such setting; write one of size, name",
    ]
    assert str(first_field_error(error)) == "parts.a.nam: there is no such setting"


def test_text_in_place_of_a_table_is_answered_without_names_of_classes() -> None:
    assert str(first_field_error(refused({"parts": {"a": "x"}}))) == "parts.a: write a table of settings"


class Choice(BaseModel, extra="forbid"):
    part: Part | None = None
    parts: tuple[Part, ...] = ()
    tables: dict[str, list[Part]] = {}
    number: int | str = 0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"part": {"size": 1, "nam": ""}}, "part.nam: there is no such setting; did you mean 'name'?"),
        ({"parts": [{"size": 1, "nam": ""}]}, "parts.0.nam: there is no such setting; did you mean 'name'?"),
        ({"tables": {"a": [{"size": 1, "nam": ""}]}}, "tables.a.0.nam: there is no such setting; did you mean 'name'?"),
        ({"size": 1}, "size: there is no such setting; write one of part, parts, tables, number"),
    ],
)
def test_known_settings_are_found_in_optional_values_lists_and_tables(value: object, message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Choice.model_validate(value)
    assert str(field_errors(raised.value, model=Choice)[0]) == message


def test_a_model_that_did_not_reject_the_value_gives_no_suggestion() -> None:
    error = refused({"parts": {"a": {"size": 1, "nam": "x"}}})
    assert str(field_errors(error, model=Part)[0]) == "parts.a.nam: there is no such setting"
