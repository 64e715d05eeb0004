from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from core.runs import SOON, Paced, prompt_of
from rl_conductor.errors import ModelError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Completion, FilePart, ImagePart, JsonFormat, Message, TextPart, ToolCall, Usage
from server.conftest import TWO_STEPS, Serve, sent_events

ANY: Any = {"type": "json_object"}
BASIC: Any = {"model": "conductor-mini", "input": "Say something."}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather somewhere.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
PAPER = "data:application/pdf;base64,JVBERi0="


async def test_an_answer_comes_with_its_usage_planning_included(serve: Serve) -> None:
    at = await serve(planner=TWO_STEPS)
    reply = await at.openai().responses.create(**BASIC, instructions="Be brief.", metadata={"team": "red"})
    assert reply.output_text == "from b"
    assert reply.status == "completed"
    assert reply.metadata == {"team": "red"}
    assert reply.usage is not None
    by = (reply.usage.model_extra or {})["conductor"]
    each = [by["planning"], *by["workers"].values()]
    assert reply.usage.input_tokens == sum(one["input_tokens"] for one in each) > 0
    assert reply.usage.output_tokens == sum(one["output_tokens"] for one in each) > 0


async def test_tokens_arrive_as_the_last_worker_writes_them(serve: Serve) -> None:
    read = asyncio.Event()

    async def until_read(said: str) -> None:
        if said == "one ":
            await asyncio.wait_for(read.wait(), SOON)

    at = await serve({"a": Paced("one two", until_read)})
    texts = []
    async with at.openai().responses.stream(**BASIC) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                texts.append(event.delta)
                read.set()
        final = await stream.get_final_response()
    assert texts == ["one ", "two"]
    assert final.output_text == "one two"
    assert final.usage is not None


@pytest.mark.parametrize("progress", ["comments", "chunks"])
async def test_the_official_client_ignores_progress_in_comments_and_chunks(serve: Serve, progress: str) -> None:
    at = await serve(planner=TWO_STEPS)
    stream = await at.openai().responses.create(**BASIC, stream=True, extra_body={"conductor": {"progress": progress}})
    events: list[Any] = [event async for event in stream]
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "from b"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert any(event.type == "conductor.progress" for event in events) == (progress == "chunks")


@pytest.mark.parametrize("streamed", [False, True])
async def test_results_of_parallel_tool_calls_go_to_the_worker_that_made_the_calls(
    serve: Serve, streamed: bool
) -> None:
    calls = tuple(
        ToolCall(id=f"vendor-{i}", name="weather", arguments=json.dumps({"city": city})) for i, city in enumerate("AB")
    )
    planner, b = ScriptedModel([TWO_STEPS]), ScriptedModel([Message.assistant("Let me see.", tool_calls=calls), "Dry."])
    at = await serve({"a": ScriptedModel(["a draft"]), "b": b}, planner)
    client = at.openai()
    asked: list[Any] = [{"role": "user", "content": "Say something."}]
    if streamed:
        async with client.responses.stream(model="conductor-mini", input=asked, tools=[WEATHER]) as stream:
            first: Any = await stream.get_final_response()
    else:
        first = await client.responses.create(model="conductor-mini", input=asked, tools=[WEATHER])
    made = [item for item in first.output if item.type == "function_call"]
    assert [call.arguments for call in made] == ['{"city": "A"}', '{"city": "B"}']
    asked += [item.to_dict() for item in first.output]
    asked += [{"type": "function_call_output", "call_id": call.call_id, "output": "dry"} for call in made]
    second = await client.responses.create(model="conductor-mini", input=asked, tools=[WEATHER])
    assert second.output_text == "Dry."
    assert "a draft" in prompt_of(b.requests[1])
    assert [m.text for m in b.requests[1].messages if m.role == "tool"] == ["dry", "dry"]
    planner.assert_complete()


async def test_a_json_schema_images_files_and_instructions_reach_the_last_worker(serve: Serve) -> None:
    class Sum(BaseModel):
        total: int

    a = ScriptedModel('{"total": 7}')
    at = await serve({"a": a})
    parts = [
        {"type": "input_text", "text": "How many?"},
        {"type": "input_image", "image_url": PIXEL, "detail": "high"},
        {"type": "input_file", "file_data": PAPER, "filename": "a.pdf"},
    ]
    asked: Any = [{"role": "user", "content": parts}]
    reply = await at.openai().responses.parse(
        model="conductor-mini", input=asked, text_format=Sum, instructions="Be brief.", max_output_tokens=50
    )
    assert reply.output_parsed == Sum(total=7)
    (request,) = a.requests
    assert isinstance(request.response_format, JsonFormat)
    assert request.messages[0].text == "Be brief."
    assert ImagePart(media_type="image/png", data="iVBORw0KGgo=", detail="high") in request.messages[1].content
    assert FilePart(name="a.pdf", data="JVBERi0=") in request.messages[1].content
    assert request.sampling.max_tokens == 50


@pytest.mark.parametrize(
    ("calls", "statuses"),
    [((), ["incomplete"]), ((ToolCall(id="1", name="weather", arguments="{}"),), ["completed", "incomplete"])],
    ids=["text", "call"],
)
async def test_a_truncated_answer_is_marked_as_incomplete_with_its_last_item(
    serve: Serve, calls: tuple[ToolCall, ...], statuses: list[str]
) -> None:
    message = Message.assistant("from", tool_calls=calls)
    short = Completion(message=message, usage=Usage(calls=1), finish_reason="length", model="a")
    at = await serve({"a": ScriptedModel([short, short])})
    reply = await at.openai().responses.create(**BASIC, tools=[WEATHER])
    assert reply.status == "incomplete"
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    output: list[Any] = reply.output
    assert [item.status for item in output] == statuses
    stream = await at.openai().responses.create(**BASIC, tools=[WEATHER], stream=True)
    events: list[Any] = [event async for event in stream]
    assert events[-1].type == "response.incomplete"
    assert [event.item.status for event in events if event.type == "response.output_item.done"] == statuses


async def test_a_stream_in_the_background_begins_as_queued(serve: Serve) -> None:
    at = await serve()
    stream = await at.openai().responses.create(**BASIC, stream=True, background=True)
    events: list[Any] = [event async for event in stream]
    assert [(event.type, event.response.status) for event in events[:3]] == [
        ("response.created", "queued"),
        ("response.queued", "queued"),
        ("response.in_progress", "in_progress"),
    ]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"truncation": "middle"}, "truncation"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"input": [{"type": "hologram", "id": "x"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y"}]}]}, "image_url"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "JVBERi0="}]}]}, "file_data"),
    ],
)
async def test_unsupported_parameters_are_rejected_by_name(serve: Serve, wrong: dict[str, Any], param: str) -> None:
    at = await serve()
    with pytest.raises(openai.BadRequestError) as caught:
        await at.openai().post("/responses", body=BASIC | wrong, cast_to=object)
    assert (caught.value.param or "").startswith(param)


async def test_ignored_parameters_are_listed_in_the_response(serve: Serve) -> None:
    at = await serve()
    raw = await at.openai().responses.with_raw_response.create(**BASIC, prompt_cache_options={"mode": "explicit"})
    assert raw.headers["x-conductor-ignored"] == "prompt_cache_options"


async def test_a_request_of_codex_is_answered(serve: Serve) -> None:
    a = ScriptedModel("Done.")
    at = await serve({"a": a})
    shell = {"type": "function", "name": "shell", "strict": False, "parameters": {"type": "object"}, "newest": 1}
    patch = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}
    body = BASIC | {
        "tools": [{"type": "web_search"}, shell, patch],
        "reasoning": {"effort": "xhigh", "summary": "auto"},
        "text": {"verbosity": "low"},
        "include": ["reasoning.encrypted_content"],
        "service_tier": "priority",
        "client_metadata": {"x": "y"},
        "store": False,
    }
    reply = await at.http.post("/v1/responses", json=body)
    assert reply.status_code == 200, reply.text
    assert {tool.name for request in a.requests for tool in request.tools} == {"shell"}
    assert set(reply.headers["x-conductor-ignored"].split(", ")) == {
        *("tools.web_search", "tools.custom", "tools.newest", "reasoning.effort", "reasoning.summary"),
        *("text.verbosity", "reasoning.encrypted_content", "service_tier", "client_metadata"),
    }
    strict = await serve(intake={"strict": True})
    rejected = await strict.http.post("/v1/responses", json=BASIC | {"tools": [patch]})
    assert rejected.json()["error"]["message"] == "tools.0.type is not a supported type of tool; write 'function'"


async def test_images_in_a_tool_result_reach_the_worker(serve: Serve) -> None:
    a = ScriptedModel("A pixel.")
    at = await serve({"a": a})
    shown = [{"type": "input_text", "text": "Here."}, {"type": "input_image", "image_url": PIXEL}]
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    given = {"type": "function_call_output", "call_id": "call_1", "output": shown}
    asked: Any = [{"role": "user", "content": "Look."}, call, given]
    await at.openai().responses.create(model="conductor-mini", input=asked)
    (result,) = [message for message in a.requests[0].messages if message.role == "tool"]
    assert result.content == (TextPart(text="Here."), ImagePart(media_type="image/png", data="iVBORw0KGgo="))


async def test_an_error_during_a_stream_is_raised_by_the_official_client(serve: Serve) -> None:
    broken: Any = ["It is ", ModelError("the line went dead", model="a")]
    at = await serve({"a": ScriptedModel([broken])})
    with pytest.raises(openai.APIError, match="the line went dead") as caught:
        [event async for event in await at.openai().responses.create(**BASIC, stream=True)]
    assert caught.value.code == "server_error"


async def test_an_error_during_a_stream_fails_the_response(serve: Serve) -> None:
    broken: Any = ["It is ", ModelError("the line went dead", model="a")]
    at = await serve({"a": ScriptedModel([broken])})
    reply = await at.http.post("/v1/responses", json=BASIC | {"stream": True})
    error, failed = sent_events(reply)[-2:]
    reason = {"code": "server_error", "message": failed["response"]["error"]["message"], "param": None}
    number = failed["sequence_number"] - 1
    nested = reason | {"type": "server_error"}
    assert error == {"type": "error", "sequence_number": number, **reason, "error": nested}
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert "the line went dead" in reason["message"]


async def test_with_store_false_only_usage_and_cost_are_stored(serve: Serve) -> None:
    at = await serve()
    reply = await at.openai().responses.create(**BASIC, store=False)
    await at.service.store.write_queue.flush()
    kept = (await at.http.get(f"/v1/runs/run-{reply.id.removeprefix('resp_')}")).json()
    assert kept["trace"] is None
    assert kept["usage"]["calls"] == 2


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"role": "user", "content": [{"type": "input_file", "file_url": "https://x/y.pdf"}]},
            "input.0.content.0.file_url is not supported",
        ),
        (
            {"role": "user", "content": [{"type": "input_image", "file_id": "file-1", "image_url": None}]},
            "input.0.content.0.file_id is not supported",
        ),
        (
            {"type": "hologram"},
            "input.0 has the unsupported type 'hologram'; write one of 'message', 'function_call'",
        ),
    ],
)
async def test_an_item_that_can_not_be_read_is_named(serve: Serve, item: dict[str, Any], message: str) -> None:
    at = await serve()
    answered = await at.http.post("/v1/responses", json={"model": "conductor-mini", "input": [item]})
    assert answered.status_code == 400
    assert answered.json()["error"]["message"].startswith(message)
    assert "vendor_item" not in answered.text


@pytest.mark.parametrize("strict", [False, True])
async def test_fields_that_are_null_are_unset(serve: Serve, *, strict: bool) -> None:
    at = await serve({"a": ScriptedModel("It is.")}, intake={"strict": strict})
    unset = dict.fromkeys(("tools", "tool_choice", "text", "metadata", "conductor", "temperature"))
    answered = await at.http.post("/v1/responses", json=BASIC | unset)
    assert answered.status_code == 200, answered.text
    assert not answered.headers.get("x-conductor-ignored")
    unset = dict.fromkeys(("system", "tools", "tool_choice", "metadata", "stream", "stop_sequences"))
    message: Any = {"model": "conductor-mini", "max_tokens": 9, "messages": [{"role": "user", "content": "Say it."}]}
    answered = await at.http.post("/v1/messages", json=message | unset)
    assert answered.status_code == 200, answered.text
    answered = await at.http.post("/v1/messages", json=message | {"max_tokens": None})
    assert answered.json()["error"]["message"] == "max_tokens is missing"


async def test_a_response_repeats_the_format_and_the_other_settings_of_its_request(serve: Serve) -> None:
    at = await serve({"a": '{"total": 7}'})
    form: Any = {"type": "json_schema", "name": "sum", "schema": {"type": "object"}, "strict": False}
    reply = await at.openai().responses.create(
        **BASIC, text={"format": form}, reasoning={"effort": "low"}, user="ann", safety_identifier="u1"
    )
    assert reply.text is not None
    assert reply.text.format is not None
    assert reply.text.format.to_dict() == form
    assert (reply.reasoning and reply.reasoning.effort, reply.user, reply.safety_identifier) == ("low", "ann", "u1")
    assert reply.completed_at is not None
    assert reply.completed_at >= reply.created_at
    requests: list[Any] = [BASIC, {**BASIC, "text": {"format": ANY}}]
    formats = [(await at.openai().responses.create(**request)).text for request in requests]
    assert [text and text.format and text.format.type for text in formats] == ["text", "json_object"]
