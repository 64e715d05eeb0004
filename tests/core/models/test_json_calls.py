from __future__ import annotations

import json
from typing import Any

import pytest

from rl_conductor.models.json_calls import calling, may_become_call, read_call
from rl_conductor.types import JsonFormat, Tool

WEATHER = Tool(name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
CALL = '{"name": "weather", "arguments": {"city": "Kyiv"}}'


@pytest.mark.parametrize(
    "text",
    [CALL, f"\n {CALL}\n", f"```json\n{CALL}\n```", f"```\n{CALL}```", f"<tool_call>\n{CALL}\n</tool_call>"],
)
def test_a_bare_or_wrapped_call_is_read(text: str) -> None:
    call = read_call(text, [WEATHER])
    assert call is not None
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Kyiv"})


def test_each_call_has_an_id_of_its_own() -> None:
    assert read_call(CALL, [WEATHER]) != read_call(CALL, [WEATHER])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The weather is fine.",
        f"I would write {CALL}",
        f"{CALL} and so on",
        CALL[:-1],
        "[" * 100_000,
        "{" + '"a":{' * 50_000,
        '{"name": "other", "arguments": {}}',
        '{"name": "weather", "arguments": "Kyiv"}',
        '{"name": "weather"}',
        '{"name": ["weather"], "arguments": {}}',
        '{"name": "weather", "arguments": {}, "why": "because"}',
        '["weather"]',
        "null",
    ],
)
def test_an_answer_is_no_call(text: str) -> None:
    assert read_call(text, [WEATHER]) is None


@pytest.mark.parametrize("text", ["", " \n", "{", '{"na', "```", "<tool"])
def test_a_beginning_that_may_become_a_call_is_held_back(text: str) -> None:
    assert may_become_call(text)


def test_a_beginning_of_plain_words_is_not_held_back() -> None:
    assert not may_become_call("The")


def _resolved(schema: Any, reference: str) -> Any:
    for step in reference.removeprefix("#/").split("/"):
        schema = schema[step]
    return schema


def test_references_are_found_where_their_schemas_now_stand() -> None:
    nested = {
        "type": "object",
        "properties": {"at": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}, "again": {"$ref": "#"}},
        "$defs": {"Place": {"enum": ["here", "there"]}},
    }
    answer = JsonFormat(json_schema={"$ref": "#/$defs/N", "$defs": {"N": {"type": "integer"}}})
    schema = calling([WEATHER, Tool(name="go", parameters=nested)], instead=answer).json_schema
    assert schema is not None
    go = _resolved(schema, schema["anyOf"][1]["$ref"])["properties"]["arguments"]
    assert _resolved(schema, go["properties"]["at"]["anyOf"][0]["$ref"]) == {"enum": ["here", "there"]}
    assert _resolved(schema, go["properties"]["again"]["$ref"]) == go
    reply = _resolved(schema, schema["anyOf"][2]["$ref"])
    assert _resolved(schema, reply["$ref"]) == {"type": "integer"}


def test_a_field_that_is_called_ref_is_left_alone() -> None:
    parameters = {"type": "object", "properties": {"$ref": {"type": "string"}}}
    schema = calling([Tool(name="look", parameters=parameters)]).json_schema
    assert schema is not None
    call = _resolved(schema, schema["anyOf"][0]["$ref"])
    assert call["properties"]["arguments"] == parameters
