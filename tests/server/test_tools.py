"""Tools in all three APIs: what of them reaches the worker, and what a client sends with their results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from rl_conductor.models.base import Capabilities
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Message, Request, ToolCall
from rl_conductor_server.errors import ApiError
from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.request_validation.tool_results import check_tool_results
from server.conftest import TWO_STEPS, Serve

CALL = Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="{}")])
ASKED = {"role": "user", "content": "Look."}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
CAN = Capabilities(tools=True, images=True)


def chat(note: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    tools = [{"type": "function", "function": {"name": "look"}}]

    def body(first: dict[str, Any] | None = None) -> dict[str, Any]:
        if first is None:
            return {"messages": [ASKED], "tools": tools}
        message = first["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "A cat."}
        return {"messages": [ASKED, message, result, note], "tools": tools}

    return body


def messages(note: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    options = {"max_tokens": 100, "tools": [{"name": "look", "input_schema": {"type": "object"}}]}

    def body(first: dict[str, Any] | None = None) -> dict[str, Any]:
        if first is None:
            return {"messages": [ASKED], **options}
        result = {"type": "tool_result", "tool_use_id": first["content"][0]["id"], "content": "A cat."}
        called = {"role": "assistant", "content": first["content"]}
        return {"messages": [ASKED, called, {"role": "user", "content": [result, note]}], **options}

    return body


def responses(note: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    tools = [{"type": "function", "name": "look"}]

    def body(first: dict[str, Any] | None = None) -> dict[str, Any]:
        if first is None:
            return {"input": "Look.", "tools": tools}
        result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "A cat."}
        return {"previous_response_id": first["id"], "input": [result, note], "tools": tools}

    return body


@pytest.mark.parametrize(
    ("path", "body", "role"),
    [
        ("chat/completions", chat({"role": "user", "content": "A file changed."}), "user"),
        ("chat/completions", chat({"role": "developer", "content": "Be brief."}), "system"),
        (
            "chat/completions",
            chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}),
            "user",
        ),
        ("messages", messages({"type": "text", "text": "<system-reminder>A file changed.</system-reminder>"}), "user"),
        ("responses", responses({"role": "user", "content": "By the way, be brief."}), "user"),
        ("responses", responses({"role": "developer", "content": "Be brief."}), "system"),
    ],
)
async def test_notes_after_the_results_of_tools_go_to_the_worker_that_made_the_calls(
    serve: Serve, path: str, body: Callable[..., dict[str, Any]], role: str
) -> None:
    planner, b = ScriptedModel([TWO_STEPS]), ScriptedModel([CALL, "It is a cat."], capabilities=CAN)
    at = await serve({"a": ScriptedModel(["a draft"]), "b": b}, planner)
    first = await at.http.post(f"/v1/{path}", json={"model": "conductor-mini", **body()})
    second = await at.http.post(f"/v1/{path}", json={"model": "conductor-mini", **body(first.json())})

    assert (first.status_code, second.status_code) == (200, 200)
    assert "It is a cat." in second.text
    planner.assert_complete()
    opening, *rest = b.requests[1].messages
    assert "a draft" in opening.text
    assert [message.role for message in rest] == ["assistant", "tool", role]


STRICT: dict[str, Any] = {"name": "look", "strict": True}
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [ASKED], "tools": [{"type": "function", "function": STRICT}]},
    "messages": {"messages": [ASKED], "max_tokens": 100, "tools": [STRICT | {"input_schema": {"type": "object"}}]},
    "responses": {"input": "Look.", "tools": [STRICT | {"type": "function"}]},
}


@pytest.mark.parametrize("path", BODIES)
async def test_the_vendor_has_to_enforce_the_schema_of_a_strict_tool(serve: Serve, path: str) -> None:
    a = ScriptedModel("A cat.")
    at = await serve({"a": a})
    answered = await at.http.post(f"/v1/{path}", json={"model": "conductor-mini", **BODIES[path]})
    assert [tool.strict for tool in a.requests[0].tools] == [True]
    assert "x-conductor-ignored" not in answered.headers
    assert path != "responses" or answered.json()["tools"][0]["strict"] is True


@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("chat/completions", {"parallel_tool_calls": False}),
        ("responses", {"parallel_tool_calls": False}),
        ("messages", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_without_parallel_tool_calls_gets_one_even_if_the_worker_makes_two(
    serve: Serve, path: str, option: dict[str, Any], stream: bool
) -> None:
    calls = [ToolCall(id=id_, name="look", arguments=json.dumps({"at": id_})) for id_ in ("Rome", "Oslo")]
    a = ScriptedModel([Message.assistant(tool_calls=calls)])
    at = await serve({"a": a})
    body = {"model": "conductor-mini", "stream": stream, **BODIES[path], **option}
    answered = await at.http.post(f"/v1/{path}", json=body)
    assert [request.parallel_tool_calls for request in a.requests] == [False]
    assert "Rome" in answered.text
    assert "Oslo" not in answered.text
    trace = (await at.http.get(f"/v1/runs/{answered.headers['x-conductor-run']}")).json()["trace"]
    assert trace["completion"]["dropped_calls"] == 1


@pytest.mark.parametrize("path", BODIES)
async def test_two_tools_of_one_name_are_an_error_that_names_it(serve: Serve, path: str) -> None:
    body = BODIES[path] | {"model": "conductor-mini", "tools": BODIES[path]["tools"] * 2}
    refused = await (await serve()).http.post(f"/v1/{path}", json=body)
    assert refused.status_code == 400
    message = "tools has 2 tools with the name 'look'; give each a name of its own"
    error = refused.json()["error"]
    assert error["message"] == message
    assert path == "messages" or error["param"] == "tools"


TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLED = {"role": "assistant", "tool_calls": [TOOL_CALL, TOOL_CALL | {"id": "c2"}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "A cat."}
USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]}
ITEM = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("chat/completions", {"messages": [ASKED, RESULT]}, "'c1'"),
        ("chat/completions", {"messages": [ASKED, CALLED, RESULT]}, "'c2' of 'look'"),
        ("chat/completions", {"messages": [ASKED, CALLED, RESULT, ASKED]}, "'c2' of 'look'"),
        ("chat/completions", {"messages": [ASKED, CALLED, RESULT, RESULT]}, "'c1'"),
        (
            "messages",
            {
                "max_tokens": 9,
                "messages": [ASKED, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}]}],
            },
            "'c1'",
        ),
        ("messages", {"max_tokens": 9, "messages": [ASKED, USED, ASKED]}, "'c1' of 'look'"),
        ("responses", {"input": [{"type": "function_call_output", "call_id": "c1", "output": "x"}]}, "'c1'"),
        ("responses", {"input": [ASKED, ITEM, ASKED]}, "'c1' of 'look'"),
    ],
)
async def test_a_call_without_its_result_or_a_result_without_its_call_is_rejected_before_any_model_is_called(
    serve: Serve, path: str, body: dict[str, Any], named: str
) -> None:
    at = await serve({"a": ScriptedModel([])}, ScriptedModel([]))
    rejected = await at.http.post(f"/v1/{path}", json={"model": "conductor-mini", **body})
    error = rejected.json()["error"]
    assert (rejected.status_code, error["type"]) == (400, "invalid_request_error")
    assert named in error["message"]


def conversation(calls: list[str], results: list[str]) -> ParsedRequest:
    called = Message.assistant(tool_calls=[ToolCall(id=name, name="look", arguments="{}") for name in calls])
    answers = [Message.tool(name, "A cat.") for name in results]
    return ParsedRequest(model="m", request=Request(messages=(Message.user("Look."), called, *answers)))


@pytest.mark.parametrize(
    ("calls", "results", "named"),
    [
        (["1", "2"], ["1"], "tool call '2' of 'look'"),
        (["1"], ["1", "1"], "tool result for '1'"),
        (["1", "1"], ["1"], "tool call '1' of 'look'"),
    ],
)
def test_a_tool_call_or_a_result_that_is_alone_is_an_error_that_names_it(
    calls: list[str], results: list[str], named: str
) -> None:
    with pytest.raises(ApiError, match=named):
        check_tool_results(conversation(calls, results))


def test_the_results_of_calls_with_one_id_belong_to_one_call_each() -> None:
    check_tool_results(conversation(["1", "1"], ["1", "1"]))


@pytest.mark.timed
def test_the_results_of_thousands_of_calls_are_checked_in_no_time_in_any_order() -> None:
    """In quadratic time, the largest request would stop the server for seconds."""
    names = [str(number) for number in range(2_000)]
    parsed = conversation(names, names[::-1])
    began = time.process_time()
    check_tool_results(parsed)
    assert time.process_time() - began < 0.2
