from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor.errors import BadResponseError
from rl_conductor.models.tool_emulation import (
    ToolCallReader,
    add_schema_to_prompt,
    may_become_tool_call,
    offered_tools,
    parse_tool_calls,
    response_format_with_tools,
    tool_call_format,
)
from rl_conductor.types import Grammar, JsonFormat, Message, Request, Tool

WEATHER = Tool(name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
CALL = '{"name": "weather", "arguments": {"city": "Kyiv"}}'


@pytest.mark.parametrize(
    "text",
    [CALL, f"\n {CALL}\n", f"```json\n{CALL}\n```", f"```\n{CALL}```", f"<tool_call>\n{CALL}\n</tool_call>"],
)
def test_a_bare_or_wrapped_call_is_read(text: str) -> None:
    [call] = parse_tool_calls(text, [WEATHER])
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Kyiv"})


def test_a_list_is_several_calls() -> None:
    first, second = parse_tool_calls(f"[{CALL}, {CALL}]", [WEATHER])
    assert first.id != second.id
    assert first.arguments == second.arguments


def test_arguments_keep_their_characters() -> None:
    [call] = parse_tool_calls(CALL.replace("Kyiv", "Київ"), [WEATHER])
    assert call.arguments == '{"city": "Київ"}'


def test_arguments_may_be_called_parameters() -> None:
    [call] = parse_tool_calls(CALL.replace("arguments", "parameters"), [WEATHER])
    assert json.loads(call.arguments) == {"city": "Kyiv"}


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
        f'[{CALL}, "weather"]',
        "[]",
        "null",
    ],
)
def test_an_answer_is_no_call(text: str) -> None:
    assert parse_tool_calls(text, [WEATHER]) == ()


def test_a_schema_is_told_in_the_last_turn_of_the_user() -> None:
    turns = (Message.user("Where?"), Message.assistant("There."), Message.user("In one word."), Message.assistant("Hm"))
    asked = Request(messages=turns, response_format=JsonFormat(json_schema={"title": "Größe"}))
    first, second, third, fourth = add_schema_to_prompt(asked).messages
    assert (first, second, fourth) == (turns[0], turns[1], turns[3])
    assert third.text == 'In one word.\n\nAnswer in JSON of this schema: {"title": "Größe"}'


@pytest.mark.parametrize("form", [None, JsonFormat(), Grammar(gbnf='root ::= "x"')])
def test_nothing_is_told_where_there_is_no_schema(form: JsonFormat | Grammar | None) -> None:
    asked = Request(messages=(Message.user("Where?"),), response_format=form)
    assert add_schema_to_prompt(asked) == asked


def test_nothing_is_told_where_no_user_speaks() -> None:
    asked = Request(messages=(Message.system("Talk."),), response_format=JsonFormat(json_schema={}))
    assert add_schema_to_prompt(asked) == asked


@pytest.mark.parametrize("text", ["", " \n", "{", '{"na', "```", "<tool"])
def test_a_beginning_that_may_become_a_call_is_held_back(text: str) -> None:
    assert may_become_tool_call(text)


@pytest.mark.parametrize("text", ["The", "<b>"])
def test_a_beginning_of_something_else_is_not_held_back(text: str) -> None:
    assert not may_become_tool_call(text)


# ------------------------------------------------------------------------------------------ choice

OTHER = Tool(name="other")
ASKING = Request(messages=(Message.user("Kyiv?"),), tools=(WEATHER, OTHER))


def choosing(choice: str, **options: Any) -> Request:
    return ASKING.model_copy(update={"tool_choice": choice} | options)


def test_the_model_is_told_of_the_tools_it_may_call() -> None:
    told = [offered_tools(choosing(choice)) for choice in ("auto", "required", "other", "none")]
    assert told == [(WEATHER, OTHER), (WEATHER, OTHER), (OTHER,), ()]


def test_a_call_is_enforced_only_where_it_must_be() -> None:
    form = Grammar(gbnf='root ::= "yes"')
    forms = [response_format_with_tools(choosing(choice, response_format=form)) for choice in ("auto", "none", "other")]
    assert forms == [form, form, tool_call_format([OTHER])]


def test_an_answer_of_a_schema_may_be_a_call_instead() -> None:
    form = JsonFormat(json_schema={"type": "integer"})
    assert response_format_with_tools(choosing("auto", response_format=form)) == tool_call_format(
        [WEATHER, OTHER], alternative=form
    )


# ----------------------------------------------------------------------------------------- replies

BLOCK = f"<tool_call>\n{CALL}\n</tool_call>"


def read(*pieces: str, request: Request = ASKING, truncated: bool = False) -> tuple[list[str], ToolCallReader]:
    reader = ToolCallReader(request, model="m")
    shown = [reader.add(piece) for piece in pieces]
    shown.append(reader.end(truncated=truncated))
    assert "".join(shown) == reader.text
    return shown, reader


def test_text_is_passed_on_at_once() -> None:
    shown, reader = read("It ", "is <b>", "fine")
    assert shown == ["It ", "is <b>", "fine", ""]
    assert reader.calls == ()


def test_of_calls_behind_text_no_mark_is_shown() -> None:
    shown, reader = read(*f"Let me look.\n{BLOCK}\n{BLOCK}")
    assert "".join(shown) == "Let me look.\n"
    assert [call.name for call in reader.calls] == ["weather", "weather"]
    assert shown[0] == "L"


@pytest.mark.parametrize("reply", [CALL, f"```json\n{CALL}\n```", BLOCK, f"<tool_call>{CALL}", f"\n {BLOCK} \n"])
def test_a_reply_that_is_a_call_shows_no_text(reply: str) -> None:
    shown, reader = read(*reply)
    assert "".join(shown) == ""
    assert [call.name for call in reader.calls] == ["weather"]


def test_text_behind_a_call_is_shown_at_the_end() -> None:
    shown, reader = read(BLOCK, "Wait.")
    assert shown == ["", "", "Wait."]
    assert len(reader.calls) == 1


def test_what_only_began_like_a_call_is_text() -> None:
    assert read("{", '"a": 1}')[0] == ["", "", '{"a": 1}']
    assert read("see <tool", "_box>")[0] == ["see ", "<tool_box>", ""]


@pytest.mark.parametrize(
    "body", ["", "{", CALL[:-1], CALL.replace("weather", "sun"), '{"name": "weather"}', f"{CALL} x"]
)
def test_a_block_that_is_no_call_is_a_bad_response(body: str) -> None:
    with pytest.raises(BadResponseError, match="made no valid call of an offered tool") as failed:
        read(f"First.<tool_call>{body}</tool_call>")
    assert failed.value.retryable


def test_a_call_that_was_cut_off_names_the_cure() -> None:
    with pytest.raises(BadResponseError, match="raise max_tokens") as failed:
        read(f"<tool_call>{CALL[:-1]}", truncated=True)
    assert not failed.value.retryable


@pytest.mark.parametrize("choice", ["required", "weather"])
def test_what_must_be_a_call_and_is_none_is_a_bad_response(choice: str) -> None:
    with pytest.raises(BadResponseError, match="raise max_tokens"):
        read(CALL[:-1], request=choosing(choice), truncated=True)
    assert len(read(CALL, request=choosing(choice))[1].calls) == 1


def test_arguments_may_hold_the_marks_of_a_call() -> None:
    [call] = read(CALL.replace("Kyiv", "<tool_call>"))[1].calls
    assert json.loads(call.arguments) == {"city": "<tool_call>"}


def test_where_one_call_is_wanted_the_first_counts() -> None:
    _, reader = read(BLOCK, BLOCK, request=choosing("auto", parallel_tool_calls=False))
    assert len(reader.calls) == 1


@pytest.mark.parametrize("reply", [CALL, BLOCK])
def test_without_tools_everything_is_text(reply: str) -> None:
    assert read(reply, request=choosing("none"))[0] == [reply, ""]


@given(st.lists(st.sampled_from([*BLOCK, "<tool_call>", "</tool_call>", CALL, "text ", "`", "["]), max_size=30))
def test_whatever_comes_there_is_one_outcome_without_marks(pieces: list[str]) -> None:
    try:
        shown, reader = read(*pieces)
    except BadResponseError:
        return
    assert "<tool_call>" not in "".join(shown)
    assert "".join(shown) == reader.text


# ----------------------------------------------------------------------------------------- schemas


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
    schema = tool_call_format([WEATHER, Tool(name="go", parameters=nested)], alternative=answer).json_schema
    assert schema is not None
    go = _resolved(schema, schema["anyOf"][1]["$ref"])["properties"]["arguments"]
    assert _resolved(schema, go["properties"]["at"]["anyOf"][0]["$ref"]) == {"enum": ["here", "there"]}
    assert _resolved(schema, go["properties"]["again"]["$ref"]) == go
    reply = _resolved(schema, schema["anyOf"][2]["$ref"])
    assert _resolved(schema, reply["$ref"]) == {"type": "integer"}


def test_a_field_that_is_called_ref_is_left_alone() -> None:
    parameters = {"type": "object", "properties": {"$ref": {"type": "string"}}}
    schema = tool_call_format([Tool(name="look", parameters=parameters)]).json_schema
    assert schema is not None
    call = _resolved(schema, schema["anyOf"][0]["$ref"])
    assert call["properties"]["arguments"] == parameters
