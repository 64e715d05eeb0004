"""Tests of `close_schema`: which schemas OpenAI's strict mode can enforce, and that it then allows nothing else."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from rl_conductor.models.openai.dialects import DIALECTS
from rl_conductor.models.openai.strict_schema import close_schema
from rl_conductor.models.openai.wire import options_of, response_format_of
from rl_conductor.models.replies.json_schema import schema_violation
from rl_conductor.types import JsonFormat, Message, Request
from rl_conductor.types.requests import is_strict_schema


class Street(BaseModel):
    name: str
    number: int | None = None


class Dog(BaseModel):
    kind: Literal["dog"]
    age: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class House(BaseModel):
    street: Street
    tags: list[str]
    pet: Annotated[Dog | Cat, Field(discriminator="kind")]
    owner: str | None = None


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    result = close_schema(schema)
    assert result is not None
    return result


def test_a_pydantic_class_is_closed_with_its_nested_classes() -> None:
    result = closed(House.model_json_schema())
    assert is_strict_schema(result)
    assert result["required"] == ["street", "tags", "pet", "owner"]
    assert result["$defs"]["Street"]["required"] == ["name", "number"]
    assert "default" not in result["properties"]["owner"]
    assert "oneOf" not in result["properties"]["pet"]


def test_what_a_closed_schema_allows_is_what_the_class_reads() -> None:
    house: Any = {
        "street": {"name": "A", "number": None},
        "tags": [],
        "pet": {"kind": "cat", "lives": 9},
        "owner": None,
    }
    assert schema_violation(house, closed(House.model_json_schema())) is None
    assert House.model_validate(house).pet == Cat(kind="cat", lives=9)


INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    "properties",
    [
        {"a": {**INTEGER, "default": 3}},
        {"a": {**INTEGER, "minimum": 0}},
        {"a": {}},
        {"a": {"enum": ["b", 1]}},
        {"a": True},
        {"a": {"type": "object"}},
        {"a": {"type": "object", "additionalProperties": INTEGER}},
        {"a": {"type": "array"}},
        {"a": {"oneOf": [INTEGER, {"type": "string"}]}},
        {"a": {"$ref": "#/$defs/A", "description": "strict mode refuses a description beside a reference"}},
        [],
        {"a": {"type": "object", "properties": 5}},
    ],
    ids=str,
)
def test_a_schema_that_strict_mode_refuses_or_would_narrow_is_not_closed(properties: Any) -> None:
    assert close_schema({"type": "object", "properties": properties, "required": ["a"]}) is None


def test_a_property_that_is_optional_but_never_null_is_not_forced_on_the_model() -> None:
    assert close_schema({"type": "object", "properties": {"a": INTEGER}}) is None


@pytest.mark.parametrize("schema", [{"type": "string"}, {"anyOf": [INTEGER]}, {"$ref": "#"}, {}], ids=str)
def test_only_objects_are_closed(schema: dict[str, Any]) -> None:
    assert close_schema(schema) is None


def test_a_schema_nested_without_end_is_not_closed() -> None:
    schema: dict[str, Any] = {"type": "object", "required": ["a"]}
    schema["properties"] = {"a": schema}
    assert close_schema(schema) is None


scalars = st.sampled_from(
    [INTEGER, {"type": "string"}, {"type": ["boolean", "null"]}, {"type": "string", "const": "x"}]
)
schemas = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda options: {"anyOf": [*options, {"type": "null"}]}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(
            lambda properties, required: {"type": "object", "properties": properties, "required": sorted(required)},
            st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
            st.sets(st.sampled_from("abc")),
        ),
    ),
    max_leaves=6,
)
values = st.recursive(
    st.none() | st.integers() | st.booleans() | st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=6,
)


@given(schemas, values)
def test_a_closed_schema_is_strict_and_allows_nothing_that_the_original_does_not(schema: Any, value: Any) -> None:
    result = close_schema(schema)
    if result is None:
        return
    assert is_strict_schema(result)
    if schema_violation(value, result) is None:
        assert schema_violation(value, schema) is None


def test_vendors_get_the_closed_schema_unless_the_caller_decides() -> None:
    schema = Street.model_json_schema()
    sent = {strict: response_format_of(JsonFormat(json_schema=schema, strict=strict)) for strict in (None, True, False)}
    assert sent[None]["json_schema"]["strict"] is True
    assert sent[None]["json_schema"]["schema"] == close_schema(schema)
    for strict in (True, False):
        assert sent[strict]["json_schema"] == {"name": "reply", "schema": schema, "strict": strict}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_servers_that_may_refuse_strict_mode_get_the_schema_as_it_is(dialect: str) -> None:
    schema = Street.model_json_schema()
    request = Request(messages=(Message.user("Where?"),), response_format=JsonFormat(json_schema=schema))
    sent = options_of(request, DIALECTS[dialect])["response_format"]["json_schema"]
    assert sent["strict"] is (dialect == "openai")
    assert (sent["schema"] == schema) is (dialect != "openai")
