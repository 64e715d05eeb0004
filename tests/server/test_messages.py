from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from core.runs import SOON, Gated, Paced, forever, prompt_of
from rl_conductor.errors import ModelError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Completion, ImagePart, JsonFormat, Message, ToolCall, Usage
from server.conftest import TWO_STEPS, Serve, hang_up, sent_events, until

ASKED: list[Any] = [{"role": "user", "content": "Say something."}]
BASIC: Any = {"model": "conductor-mini", "max_tokens": 100, "messages": ASKED}
WEATHER: Any = {
    "name": "weather",
    "description": "The weather somewhere.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


async def test_an_answer_comes_with_its_usage_planning_included(serve: Serve) -> None:
    at = await serve(planner=TWO_STEPS)
    reply = await at.anthropic().messages.create(**BASIC)
    assert [block.type == "text" and block.text for block in reply.content] == ["from b"]
    assert reply.stop_reason == "end_turn"
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
    async with at.anthropic().messages.stream(**BASIC) as stream:
        async for text in stream.text_stream:
            texts.append(text)
            read.set()
        final = await stream.get_final_message()
    assert texts == ["one ", "two"]
    whole = await at.anthropic().messages.create(**BASIC | {"messages": ASKED})
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert final.stop_reason == "end_turn"


async def test_a_stream_begins_with_an_estimate_of_the_input_tokens_and_ends_with_their_number(serve: Serve) -> None:
    at = await serve()
    body = BASIC | {"messages": [{"role": "user", "content": "x" * 4000}], "tools": [WEATHER]}
    counted = {name: value for name, value in body.items() if name != "max_tokens"}
    estimate = (await at.anthropic().messages.count_tokens(**counted)).input_tokens
    whole = await at.anthropic().messages.create(**body)
    events = sent_events(await at.http.post("/v1/messages", json=body | {"stream": True}))
    usage = {event["type"]: event for event in events}["message_start"]["message"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (estimate, 0)
    assert events[-2]["usage"]["input_tokens"] == whole.usage.input_tokens


async def test_the_message_that_a_client_gathers_from_a_stream_has_no_cost_of_zero(serve: Serve) -> None:
    at = await serve()
    async with at.anthropic().messages.stream(**BASIC | {"messages": ASKED}) as stream:
        deltas = [event.usage async for event in stream if event.type == "message_delta"]
        final = await stream.get_final_message()
    assert "conductor" not in (final.usage.model_extra or {})  # clients only update what they know
    assert (deltas[0].model_extra or {})["conductor"]["total"]["calls"] == 2


async def test_store_false_leaves_no_content_of_a_message_either(serve: Serve) -> None:
    at = await serve()
    reply = await at.anthropic().messages.with_raw_response.create(**BASIC, extra_body={"store": False})
    await at.service.store.write_queue.flush()
    stored = (await at.http.get(f"/v1/runs/{reply.headers['x-conductor-run']}")).json()
    assert (stored["trace"], stored["question"], "x-conductor-ignored" in reply.headers) == (None, "", False)


@pytest.mark.parametrize("progress", ["comments", "chunks"])
async def test_the_official_client_ignores_progress_in_comments_and_chunks(serve: Serve, progress: str) -> None:
    at = await serve(planner=TWO_STEPS)
    extra = {"conductor": {"progress": progress}}
    async with at.anthropic().messages.stream(**BASIC, extra_body=extra) as stream:
        assert await stream.get_final_text() == "from b"


@pytest.mark.parametrize("streamed", [False, True])
async def test_results_of_parallel_tool_calls_go_to_the_worker_that_made_the_calls(
    serve: Serve, streamed: bool
) -> None:
    calls = tuple(
        ToolCall(id=f"vendor-{i}", name="weather", arguments=json.dumps({"city": city})) for i, city in enumerate("AB")
    )
    planner, b = ScriptedModel([TWO_STEPS]), ScriptedModel([Message.assistant("Let me see.", tool_calls=calls), "Dry."])
    at = await serve({"a": ScriptedModel(["a draft"]), "b": b}, planner)
    client = at.anthropic()
    if streamed:
        async with client.messages.stream(**BASIC, tools=[WEATHER]) as stream:
            first = await stream.get_final_message()
    else:
        first = await client.messages.create(**BASIC, tools=[WEATHER])
    assert first.stop_reason == "tool_use"
    uses: list[Any] = [block for block in first.content if block.type == "tool_use"]
    assert [use.input for use in uses] == [{"city": "A"}, {"city": "B"}]
    results = [
        {"type": "tool_result", "tool_use_id": use.id, "content": "dry", "is_error": i == 1}
        for i, use in enumerate(uses)
    ]
    turns: Any = [*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    second = await client.messages.create(**BASIC | {"messages": turns}, tools=[WEATHER])
    assert [block.type == "text" and block.text for block in second.content] == ["Dry."]
    assert "a draft" in prompt_of(b.requests[1])
    given = [message for message in b.requests[1].messages if message.role == "tool"]
    assert [(message.text, message.is_error) for message in given] == [("dry", False), ("dry", True)]
    planner.assert_complete()


async def test_a_json_schema_images_and_instructions_reach_the_last_worker(serve: Serve) -> None:
    class Sum(BaseModel):
        total: int

    a = ScriptedModel('{"total": 7}')
    at = await serve({"a": a})
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    turns: Any = [{"role": "user", "content": [{"type": "text", "text": "How many?"}, picture]}]
    reply = await at.anthropic().messages.parse(
        **BASIC | {"messages": turns}, output_format=Sum, system="Be brief.", stop_sequences=["END"]
    )
    assert reply.parsed_output == Sum(total=7)
    (request,) = a.requests
    assert isinstance(request.response_format, JsonFormat)
    assert request.messages[0].text == "Be brief."
    assert ImagePart(media_type="image/png", data="iVBORw0KGgo=") in request.messages[1].content
    assert (request.sampling.max_tokens, request.sampling.stop) == (100, ("END",))


async def test_the_format_of_an_answer_may_have_the_name_that_older_clients_use(serve: Serve) -> None:
    a = ScriptedModel('{"total": 7}')
    at = await serve({"a": a})
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}}
    raw = await at.anthropic().messages.with_raw_response.create(
        **BASIC, extra_body={"output_format": {"type": "json_schema", "schema": schema}}
    )
    assert a.requests[0].response_format == JsonFormat(json_schema=schema)
    assert "x-conductor-ignored" not in raw.headers


async def test_images_in_a_tool_result_reach_the_worker(serve: Serve) -> None:
    a = ScriptedModel("A pixel.")
    at = await serve({"a": a})
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    shown = [{"type": "text", "text": "Here."}, picture]
    called = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    given = {"type": "tool_result", "tool_use_id": "toolu_1", "content": shown, "is_error": True}
    turns = [*ASKED, {"role": "assistant", "content": [called]}, {"role": "user", "content": [given]}]
    await at.anthropic().messages.create(**BASIC | {"messages": turns})
    (result,) = [message for message in a.requests[0].messages if message.role == "tool"]
    assert (result.text, result.is_error) == ("Here.", True)
    assert result.content[1:] == (ImagePart(media_type="image/png", data="iVBORw0KGgo="),)


async def test_errors_are_raised_as_the_sdks_own_exceptions(serve: Serve) -> None:
    at = await serve({"a": ScriptedModel([ModelError("out of order", model="a")])})
    client = at.anthropic()
    with pytest.raises(anthropic.NotFoundError, match="no model 'claude'"):
        await client.messages.create(**BASIC | {"model": "claude"})
    with pytest.raises(anthropic.BadRequestError, match=r"output_config.effort must be .*'xhigh' or 'max'"):
        await client.messages.create(**BASIC, extra_body={"output_config": {"effort": "huge"}})
    with pytest.raises(anthropic.BadRequestError, match=r"mcp_servers is not supported"):
        await client.messages.create(**BASIC, extra_body={"mcp_servers": [{"type": "url", "url": "https://x"}]})
    picture: Any = {"type": "image", "source": {"type": "url", "url": "http://x/y"}}
    with pytest.raises(anthropic.BadRequestError, match=r"url: an image must be .* or an https: one"):
        await client.messages.create(**BASIC | {"messages": [{"role": "user", "content": [picture]}]})
    with pytest.raises(anthropic.InternalServerError, match="out of order"):
        await client.messages.create(**BASIC)


async def test_an_error_during_a_stream_is_raised_by_the_official_client(serve: Serve) -> None:
    broken: Any = ["It is ", ModelError("the line went dead", model="a")]
    at = await serve({"a": ScriptedModel([broken])})
    async with at.anthropic().messages.stream(**BASIC) as stream:
        with pytest.raises(anthropic.APIStatusError, match="the line went dead"):
            await stream.get_final_text()


async def test_ignored_parameters_are_listed_in_the_response(serve: Serve) -> None:
    at = await serve()
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    raw = await at.anthropic().messages.with_raw_response.create(
        **BASIC, system=system, thinking={"type": "enabled", "budget_tokens": 1024}
    )
    assert raw.headers["x-conductor-ignored"] == "thinking, cache_control"
    raw = await at.anthropic().messages.with_raw_response.create(**BASIC, cache_control={"type": "ephemeral"})
    assert raw.headers["x-conductor-ignored"] == "cache_control"


async def test_fields_of_newer_clients_are_ignored(serve: Serve) -> None:
    at = await serve()
    tool = {"name": "look", "input_schema": {"type": "object"}, "defer_loading": True, "input_examples": [{}]}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    document = {"type": "document", "source": pdf, "citations": {"enabled": True}}
    body = BASIC | {"tools": [tool], "top_k": 5, "context_management": {"edits": []}, "speed": "fast"}
    body |= {"output_config": {"effort": "max"}}
    body["messages"] = [{"role": "user", "content": [document, {"type": "text", "text": "Summarise it."}]}]
    reply = await at.http.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    assert set(reply.headers["x-conductor-ignored"].split(", ")) == {
        *("context_management", "messages.content.citations", "output_config.effort", "speed", "top_k"),
        *("tools.defer_loading", "tools.input_examples"),
    }


async def test_a_disconnect_cancels_the_call_to_the_worker(serve: Serve) -> None:
    a = Gated("never", forever)
    at = await serve({"a": a})
    await hang_up(at.anthropic().messages.create(**BASIC), once=a.asked)
    await until(lambda: not a.held)


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_stop_sequence_that_ended_the_answer_is_reported(serve: Serve, streamed: bool) -> None:
    message = Message.assistant("from a")
    stopped = Completion(message=message, usage=Usage(calls=1), stop_sequence="END", model="a")
    client = (await serve({"a": ScriptedModel([stopped])})).anthropic()
    request = BASIC | {"stop_sequences": ["END"]}
    if streamed:
        async with client.messages.stream(**request) as stream:
            reply = await stream.get_final_message()
    else:
        reply = await client.messages.create(**request)
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "END")


async def test_tokens_are_counted_without_a_run(serve: Serve) -> None:
    at = await serve()
    client = at.anthropic()
    request: Any = {"model": "conductor-mini", "messages": [{"role": "user", "content": "x" * 4000}]}
    plain = (await client.messages.count_tokens(**request)).input_tokens
    with_tools = (await client.messages.count_tokens(**request, tools=[WEATHER], system="y" * 400)).input_tokens
    assert 1000 <= plain < 1050
    assert plain + 100 < with_tools < plain + 200
    assert await at.service.store.list_runs() == []
    with pytest.raises(anthropic.NotFoundError, match="no model 'x'") as error:
        await client.messages.count_tokens(**request | {"model": "x"})
    assert isinstance(error.value.body, dict)
    assert error.value.body["error"]["type"] == "not_found_error"
