"""Options of requests in the forms of the vendors and of other frameworks."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from rl_conductor.errors import ConfigError
from rl_conductor.integration import allows_parallel_calls, parse_response_format, parse_tool_choice
from rl_conductor.types import JsonFormat, Tool

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


class Place(BaseModel):
    """A place."""

    city: str


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (None, "auto"),
        ("auto", "auto"),
        (False, "auto"),
        ("none", "none"),
        ("any", "required"),
        ("required", "required"),
        (True, "required"),
        ("now", "now"),
        ({"type": "function", "function": {"name": "now"}}, "now"),
        ({"type": "tool", "name": "now"}, "now"),
        ({"type": "any"}, "required"),
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
    ],
    ids=str,
)
def test_a_choice_of_tool_is_read_in_every_spelling(theirs: Any, ours: str) -> None:
    assert parse_tool_choice(theirs, [Tool(name="now")]) == ours


@pytest.mark.parametrize("kind", ["auto", "any", "tool"])
def test_a_choice_of_tool_in_anthropics_form_may_forbid_parallel_calls(kind: str) -> None:
    choice = {"type": kind, "name": "now"}
    assert not allows_parallel_calls({**choice, "disable_parallel_tool_use": True})
    assert allows_parallel_calls({**choice, "disable_parallel_tool_use": False})
    assert allows_parallel_calls(choice)
    assert allows_parallel_calls(kind)
    assert allows_parallel_calls(None)


def test_a_choice_of_a_tool_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="tool_choice is 'later'; write 'auto', 'required', 'none' or one of now"):
        parse_tool_choice("later", [Tool(name="now")])


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonFormat()),
        (
            {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": False}},
            JsonFormat(name="place", json_schema=SCHEMA, strict=False),
        ),
        (SCHEMA, JsonFormat(json_schema=SCHEMA)),
        (Place, JsonFormat(name="Place", json_schema=Place.model_json_schema())),
    ],
)
def test_a_response_format_is_read_in_every_form(theirs: Any, ours: JsonFormat | None) -> None:
    assert parse_response_format(theirs) == ours


@pytest.mark.parametrize("wrong", [5, {"type": "jsonobject"}, {"type": "json_schema"}, str])
def test_anything_else_as_a_response_format_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"response_format is .*; write a pydantic class, a JSON schema"):
        parse_response_format(wrong)
