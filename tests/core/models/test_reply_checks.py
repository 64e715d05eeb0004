"""Replies without an answer, or without the format or the tool call that their request requires."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rl_conductor.errors import BadResponseError, ReplyFormatError
from rl_conductor.models.replies.checks import check_format, checked
from rl_conductor.types import Completion, FinishReason, JsonFormat, Message, Request, Tool, ToolCall, Usage

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "day": {"type": "integer"}},
    "required": ["name", "day"],
    "additionalProperties": False,
}
FORM = JsonFormat(json_schema=SCHEMA)
CALL = Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="{}")])


def check(reply: str | Message, finish_reason: FinishReason = "stop", **request: Any) -> None:
    message = Message.assistant(reply) if isinstance(reply, str) else reply
    completion = Completion(message=message, finish_reason=finish_reason, model="m")
    assert check_format(completion, Request(messages=(Message.user("Go."),), **request)) is completion


@pytest.mark.parametrize(
    ("reply", "form", "why"),
    [
        ("Sure! Here it is.", FORM, "the reply is not JSON"),
        ("Sure! Here it is.", JsonFormat(), "the reply is not JSON"),
        ('```json\n{"name": 5, "day": 1}\n```', FORM, "5 is not of type"),
        ("[1]", JsonFormat(), "the reply is JSON, but no object"),
        ('{"name": 5, "day": 1}', FORM, r"5 is not of type 'string' \(at \$.name\)"),
        ('{"name": "x", "day": 1, "extra": 0}', FORM, "Additional properties are not allowed"),
        ("{}", JsonFormat(json_schema={"required": ["name"]}, strict=True), "'name' is a required property"),
    ],
)
def test_a_reply_in_another_format_is_an_error(reply: str, form: JsonFormat, why: str) -> None:
    with pytest.raises(BadResponseError, match=why):
        check(reply, response_format=form)


@pytest.mark.parametrize("choice", ["required", "look"])
def test_a_reply_without_a_required_call_is_an_error(choice: str) -> None:
    with pytest.raises(BadResponseError, match="has no call of a tool"):
        check("No.", tools=(Tool(name="look"),), tool_choice=choice)


def test_a_call_of_another_tool_than_the_required_one_is_an_error() -> None:
    with pytest.raises(BadResponseError, match="tool_choice 'other'"):
        check(CALL, tools=(Tool(name="look"), Tool(name="other")), tool_choice="other")


def test_replies_in_the_format_and_those_that_were_cut_off_are_returned() -> None:
    check('{"name": "x", "day": 1}', response_format=FORM)
    check('{"name": 5}', response_format=JsonFormat(json_schema={"type": "object"}, strict=False))
    check('```json\n{"name": "x", "day": 1}\n```\n', response_format=FORM)
    check('{"na', "length", response_format=FORM)
    check(CALL, response_format=FORM, tools=(Tool(name="look"),), tool_choice="look")


@pytest.mark.parametrize("finish_reason", ["tool_calls", "length"])
@pytest.mark.parametrize("arguments", ['{"day": ', "[1]", "5"])
def test_a_required_call_has_an_object_as_arguments(arguments: str, finish_reason: FinishReason) -> None:
    call = Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments=arguments)])
    with pytest.raises(ReplyFormatError, match="'look' are no JSON object") as caught:
        check(call, finish_reason, tools=(Tool(name="look"),), tool_choice="look")
    assert ("max_tokens" in str(caught.value)) is (finish_reason == "length")
    check(call, finish_reason, tools=(Tool(name="look"),))


DOUBLED: Any = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"const": 5, "type": "objekt"},
        {"properties": 5},
        {"$ref": "#"},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"$ref": "#/$defs/a0", "$defs": DOUBLED | {"a40": {"type": "string"}}},
        {"patternProperties": {"(a+)+$": {}}, "additionalProperties": False},
    ],
    ids=["type", "type of a constant", "properties", "endless", "remote", "exponential", "regular expression"],
)
def test_a_schema_that_cannot_be_checked_soon_is_not_checked(schema: dict[str, Any]) -> None:
    check('{"' + "a" * 40 + '!": 1}', response_format=JsonFormat(json_schema=schema, strict=True))


def completion(text: str = "", finish: FinishReason = "stop", *calls: ToolCall) -> Completion:
    message = Message.assistant(text, tool_calls=calls)
    return Completion(message=message, usage=Usage(), finish_reason=finish, model="m")


def test_text_or_a_tool_call_is_an_answer() -> None:
    for good in (
        completion("hi"),
        completion("hi", "length"),
        completion("", "tool_calls", ToolCall(id="a", name="b", arguments="")),
    ):
        assert checked(good, Request(messages=())) is good


def test_each_call_has_an_id_that_no_other_call_of_the_conversation_has() -> None:
    repeated = [ToolCall(id=call_id, name="look", arguments="{}") for call_id in ("1", "call_0", "call_0", "", "b")]
    reply = checked(completion("", "tool_calls", *repeated), Request(messages=(Message.user("Go."), CALL)))
    assert [call.id for call in reply.message.tool_calls] == ["call_1", "call_0", "call_2", "call_3", "b"]


@pytest.mark.parametrize(
    ("finish", "why", "retryable"),
    [("stop", "empty", True), ("length", "max_tokens", False), ("content_filter", "filter", False)],
)
def test_no_answer_is_a_bad_response_that_says_why(finish: FinishReason, why: str, retryable: bool) -> None:
    with pytest.raises(BadResponseError, match=why) as caught:
        checked(completion(" \n", finish), Request(messages=()))
    assert caught.value.retryable is retryable


def test_an_error_repeats_only_the_beginning_of_a_long_name_that_a_server_gives_its_model() -> None:
    nothing = Completion(message=Message.assistant(), model="model" * 20_000)
    with pytest.raises(BadResponseError, match=r"^modelmodel.*: the reply is empty$") as caught:
        checked(nothing, Request(messages=()))
    assert len(str(caught.value)) < 300


@pytest.mark.timed
def test_blank_lines_in_a_code_block_are_read_in_no_time() -> None:
    started = time.process_time()
    check("```json\n" + "\n" * 200_000 + '{"name": "x", "day": 1}\n```', response_format=FORM)
    with pytest.raises(BadResponseError, match="the reply is not JSON"):
        check("```json\n" + "\n" * 200_000, response_format=FORM)
    assert time.process_time() - started < 1
