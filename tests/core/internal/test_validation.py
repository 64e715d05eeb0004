from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

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
    assert str(size) == "parts.a.size: write an integer"
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
    assert str(first_field_error(refused({"parts": {"a": "x"}}))) == "parts.a: write a table or a dict of settings"


class Numbers(BaseModel, extra="forbid"):
    unknown_fields: ClassVar[dict[str, str]] = {"total": "it is computed; leave it out"}

    count: int = Field(ge=1, examples=["count = 3"])
    share: float = Field(gt=0, le=1)
    price: Decimal = Field(default=Decimal(0), decimal_places=2)
    is_exact: bool = False
    kind: Literal["a", "b"] = "a"
    tags: frozenset[str] = frozenset()
    names: tuple[str, ...] = Field(default=("x",), min_length=1)
    by_name: dict[str, int] = {}
    text: str = Field(default="x", min_length=1)
    file: Path = Path()
    code: str = Field(default="a-1", pattern=r"^\w-\d$", max_length=9, examples=["a letter and a digit, such as a-1"])
    day: date = Field(default=date.min, examples=["a date, such as day = 2026-01-31"])
    by_code: dict[Annotated[str, Field(pattern=r"^\w+$", description="letters and digits")], int] = {}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "count: write a number greater than or equal to 1"),
        ({"count": 1.5}, "count: write an integer"),
        ({"count": "x"}, "count: write an integer"),
        ({"share": 2}, "share: write a number less than or equal to 1"),
        ({"share": "x"}, "share: write a number"),
        ({"price": []}, "price: write a number"),
        ({"is_exact": "perhaps"}, "is_exact: write true or false"),
        ({"kind": "c"}, "kind: write 'a' or 'b'"),
        ({"tags": 3}, "tags: write a list"),
        ({"names": []}, "names: write at least 1 item"),
        ({"by_name": 3}, "by_name: write a table"),
        ({"text": 3}, "text: write a string"),
        ({"text": ""}, "text: write at least 1 character"),
        ({"total": 3}, "total: it is computed; leave it out"),
        ({"by_name": {"a": "x"}}, "by_name.a: write an integer"),
        ({"price": "ten"}, "price: write a number"),
        ({"price": "0.123"}, "price: write no more than 2 decimal places"),
        ({"file": 3}, "file: write a path as a string"),
        ({"code": "a1"}, "code: write a letter and a digit, such as a-1"),
        ({"code": "a-1" * 4}, "code: write at most 9 characters"),
        ({"day": "soon"}, "day: write a date, such as day = 2026-01-31"),
        ({"day": 2026}, "day: write a date, such as day = 2026-01-31"),
        ({"by_code": {"a b": 1}}, "by_code.a b: write letters and digits"),
    ],
    ids=str,
)
def test_a_message_says_what_to_write(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Numbers.model_validate({"count": 1, "share": 0.5} | values)
    assert list(map(str, field_errors(raised.value, model=Numbers))) == [message]


def test_a_missing_field_is_reported_with_an_example_where_the_model_has_one() -> None:
    with pytest.raises(ValidationError) as raised:
        Numbers.model_validate({})
    assert list(map(str, field_errors(raised.value, model=Numbers))) == [
        "count: missing; write count = 3",
        "share: missing",
    ]
    assert str(first_field_error(raised.value)) == "count: missing"


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


class Lists(BaseModel):
    parts: tuple[Part, ...] = Field(min_length=1)


def test_a_list_with_an_invalid_entry_is_not_called_too_short() -> None:
    with pytest.raises(ValidationError) as raised:
        Lists.model_validate({"parts": [{"size": 1, "nam": "x"}]})
    assert list(map(str, field_errors(raised.value, model=Lists))) == [
        "parts.0.nam: there is no such setting; did you mean 'name'?"
    ]
    with pytest.raises(ValidationError) as raised:
        Lists.model_validate({"parts": []})
    assert str(first_field_error(raised.value)) == "parts: write at least 1 item"
