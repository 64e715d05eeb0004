from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from core.runs import ACCEPT, SOON, Gated, Paced, forever, plan, prompt_of
from rl_conductor.errors import ModelError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import ImagePart, JsonFormat, Message, Price, ToolCall
from rl_conductor_server.api import frames
from server.chat_requests import post
from server.conftest import TWO_STEPS, Serve, hang_up, until

ASKED: list[Any] = [{"role": "user", "content": "Say something."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather somewhere.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


async def listen(stream: Any, said: list[str] | None = None) -> None:
    """Read a stream to its end."""
    async for chunk in stream:
        if said is not None:
            said.append(chunk.choices[0].delta.content or "")


async def test_an_answer_comes_with_its_usage_planning_included(serve: Serve) -> None:
    at = await serve(planner=TWO_STEPS)
    reply = await at.openai().chat.completions.create(model="conductor-mini", messages=ASKED)
    assert reply.choices[0].message.content == "from b"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "conductor-mini-2026-11-21"
    assert reply.usage is not None
    assert reply.usage.model_extra is not None
    by = reply.usage.model_extra["conductor"]
    each = [by["planning"], by["workers"]["a"], by["workers"]["b"]]
    assert reply.usage.prompt_tokens == sum(one["input_tokens"] for one in each)
    assert reply.usage.completion_tokens == sum(one["output_tokens"] for one in each)
    details = reply.usage.prompt_tokens_details
    assert details is not None
    assert details.model_extra == {"orchestration_tokens": reply.usage.prompt_tokens - each[2]["input_tokens"]}


async def test_response_headers_contain_run_cost_and_depth(serve: Serve) -> None:
    price = Price(input=Decimal(1), output=Decimal(10), per_call=Decimal("0.5"))
    at = await serve({"a": ScriptedModel("from a", price=price), "b": "from b"}, ScriptedModel([TWO_STEPS, ACCEPT]))
    raw = await at.openai().chat.completions.with_raw_response.create(model="conductor-ultra", messages=ASKED)
    reply = raw.parse()
    assert reply.model_extra is not None
    told = reply.model_extra["conductor"]
    assert raw.headers["x-conductor-run"] == raw.request_id == told["run"]
    assert raw.headers["x-conductor-plan-depth"] == "2"
    assert Decimal(raw.headers["x-conductor-cost-usd"]) == Decimal(told["usage"]["cost"]) > Decimal("0.5")
    assert [step["worker"] for step in told["rounds"][0]["steps"]] == ["a", "b"]


@pytest.mark.parametrize(("how", "has"), [("none", set()), ("summary", {"rounds"}), ("full", {"rounds", "trace"})])
async def test_the_response_contains_as_much_of_the_trace_as_requested(serve: Serve, how: str, has: set[str]) -> None:
    at = await serve()
    extra = {"conductor": {"trace": how}}
    reply = await at.openai().chat.completions.create(model="conductor-mini", messages=ASKED, extra_body=extra)
    told = (reply.model_extra or {}).get("conductor", {})
    assert set(told) & {"rounds", "trace"} == has


async def test_tokens_arrive_as_the_last_worker_writes_them(serve: Serve) -> None:
    read = asyncio.Event()

    async def until_read(said: str) -> None:
        if said == "one ":
            await asyncio.wait_for(read.wait(), SOON)

    at = await serve({"a": Paced("one two", until_read)})
    stream = await at.openai().chat.completions.create(model="conductor-mini", messages=ASKED, stream=True)
    texts = []
    async for chunk in stream:
        texts.append(chunk.choices[0].delta.content)
        if chunk.choices[0].delta.content == "one ":
            read.set()
    assert [text for text in texts if text] == ["one ", "two"]


async def test_progress_is_reported_in_comments_that_the_official_client_ignores(serve: Serve) -> None:
    at = await serve(planner=TWO_STEPS)
    body = {"model": "conductor-mini", "messages": ASKED, "stream": True}
    raw = await at.http.post("/v1/chat/completions", json=body)
    comments = [json.loads(line[2:]) for line in raw.text.splitlines() if line.startswith(": ")]
    assert [told["type"] for told in comments] == [
        "workflow_planned",
        "step_started",
        "step_finished",
        "step_started",
        "step_finished",
    ]
    stream = await at.openai().chat.completions.create(model="conductor-mini", messages=ASKED, stream=True)
    chunks: list[ChatCompletionChunk] = [chunk async for chunk in stream]
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "from b"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert (chunks[-1].model_extra or {})["conductor"]["depth"] == 2


async def test_progress_is_reported_in_chunks_on_request(serve: Serve) -> None:
    at = await serve(planner=TWO_STEPS)
    stream = await at.openai().chat.completions.create(
        model="conductor-mini", messages=ASKED, stream=True, extra_body={"conductor": {"progress": "chunks"}}
    )
    notes = [(chunk.model_extra or {})["conductor"]["type"] async for chunk in stream if not chunk.choices]
    assert notes == ["workflow_planned", "step_started", "step_finished", "step_started", "step_finished"]


async def test_progress_contains_the_number_of_the_choice(serve: Serve) -> None:
    at = await serve()
    stream = await at.openai().chat.completions.create(
        model="conductor-mini", messages=ASKED, stream=True, n=2, extra_body={"conductor": {"progress": "chunks"}}
    )
    notes = [(chunk.model_extra or {})["conductor"] async for chunk in stream if not chunk.choices]
    begun = [note["choice"] for note in notes if note["type"] == "step_started"]
    assert sorted(begun) == [0, 1]


async def test_a_stream_ends_with_the_usage_on_request(serve: Serve) -> None:
    at = await serve()
    asked: Any = {"model": "conductor-mini", "messages": ASKED}
    whole = await at.openai().chat.completions.create(**asked)
    options: Any = {"include_usage": True}
    stream = await at.openai().chat.completions.create(**asked, stream=True, stream_options=options)
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_an_error_during_a_stream_is_raised_by_the_official_client(serve: Serve) -> None:
    broken: Any = ["It is ", ModelError("the line went dead", model="a")]
    at = await serve({"a": ScriptedModel([broken])})
    stream = await at.openai().chat.completions.create(model="conductor-mini", messages=ASKED, stream=True)
    said: list[str] = []
    with pytest.raises(openai.APIError, match="the line went dead"):
        await listen(stream, said)
    assert "".join(said) == "It is "


@pytest.mark.parametrize("streamed", [False, True])
async def test_results_of_parallel_tool_calls_go_to_the_worker_that_made_the_calls(
    serve: Serve, streamed: bool
) -> None:
    calls = tuple(
        ToolCall(id=f"vendor-{i}", name="weather", arguments=f'{{"city": "{city}"}}') for i, city in enumerate("AB")
    )
    planner, b = ScriptedModel([TWO_STEPS]), ScriptedModel([Message.assistant(tool_calls=calls), "A is dry, B is wet."])
    at = await serve({"a": ScriptedModel(["a draft"]), "b": b}, planner)
    client = at.openai()
    if streamed:
        async with client.chat.completions.stream(model="conductor-mini", messages=ASKED, tools=[WEATHER]) as stream:
            first: Any = await stream.get_final_completion()
    else:
        first = await client.chat.completions.create(model="conductor-mini", messages=ASKED, tools=[WEATHER])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert [call.function.arguments for call in message.tool_calls or []] == ['{"city": "A"}', '{"city": "B"}']
    assert all(len(call.id) <= 40 for call in message.tool_calls or [])
    results = [
        {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": weather}
        for call, weather in zip(message.tool_calls or [], ("dry", "wet"), strict=True)
    ]
    turns: list[Any] = [*ASKED, message.to_dict(), *results]
    second = await client.chat.completions.create(model="conductor-mini", messages=turns, tools=[WEATHER])
    assert second.choices[0].message.content == "A is dry, B is wet."
    assert "a draft" in prompt_of(b.requests[1])
    assert [m.text for m in b.requests[1].messages if m.role == "tool"] == ["dry", "wet"]
    planner.assert_complete()


async def test_tool_calls_are_streamed_whole(serve: Serve) -> None:
    call = ToolCall(id="vendor-1", name="weather", arguments='{"city": "A"}')
    at = await serve({"a": ScriptedModel([Message.assistant(tool_calls=[call])])})
    stream = await at.openai().chat.completions.create(
        model="conductor-mini",
        messages=ASKED,
        tools=[WEATHER],
        stream=True,
    )
    chunks = [chunk async for chunk in stream]
    made = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [(c.index, c.function and c.function.name, c.function and c.function.arguments) for c in made] == [
        (0, "weather", '{"city": "A"}')
    ]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_results_of_an_unknown_tool_call_are_planned_like_any_request(serve: Serve) -> None:
    at = await serve()
    turns: list[Any] = [
        *ASKED,
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "call_0123456789abcdef_0",
                    "type": "function",
                    "function": {"name": "weather", "arguments": "{}"},
                    "extra_content": {"google": {"thought_signature": "c2lnbmVk"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_0123456789abcdef_0", "content": "dry"},
    ]
    reply = await at.openai().chat.completions.create(model="conductor-mini", messages=turns)
    assert (reply.model_extra or {})["conductor"]["rounds"][0]["plan"]["source"] == "planner"


async def test_a_json_schema_reaches_the_last_worker_and_the_reply_is_parsed_by_the_client(serve: Serve) -> None:
    class Sum(BaseModel):
        total: int

    a = ScriptedModel('{"total": 7}')
    at = await serve({"a": a})
    reply = await at.openai().chat.completions.parse(model="conductor-mini", messages=ASKED, response_format=Sum)
    assert reply.choices[0].message.parsed == Sum(total=7)
    form = a.requests[0].response_format
    assert isinstance(form, JsonFormat)
    assert form.json_schema is not None
    assert form.json_schema["required"] == ["total"]


async def test_images_and_sampling_reach_the_last_worker(serve: Serve) -> None:
    a = ScriptedModel("A pixel.")
    at = await serve({"a": a})
    content: Any = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
    ]
    await at.openai().chat.completions.create(
        model="conductor-mini",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}],
        stop=["END"],
        seed=5,
        temperature=0.5,
        top_p=0.9,
        max_tokens=77,
    )
    (request,) = a.requests
    assert ImagePart(media_type="image/png", data="iVBORw0KGgo=", detail="low") in request.messages[1].content
    sampling = request.sampling
    assert (sampling.stop, sampling.seed, sampling.temperature, sampling.top_p) == (("END",), 5, 0.5, 0.9)
    assert sampling.max_tokens == 77


@pytest.mark.parametrize(("detail", "reaches"), [("original", None), ("high", "high"), ("auto", None), (None, None)])
async def test_every_detail_of_an_image_is_accepted(serve: Serve, detail: str | None, reaches: str | None) -> None:
    a = ScriptedModel("A pixel.")
    content: Any = [{"type": "image_url", "image_url": {"url": PIXEL, "detail": detail}}]
    client = (await serve({"a": a})).openai()
    await client.chat.completions.create(model="conductor-mini", messages=[{"role": "user", "content": content}])
    (image,) = [part for part in a.requests[0].messages[-1].content if isinstance(part, ImagePart)]
    assert image.detail == reaches


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e400"])
async def test_a_number_that_is_not_finite_is_rejected_before_a_worker_is_called(serve: Serve, number: str) -> None:
    a = ScriptedModel("unused")
    at = await serve({"a": a})
    tool = f'{{"type": "function", "function": {{"name": "f", "parameters": {{"maximum": {number}}}}}}}'
    body = f'{{"model": "conductor-mini", "messages": [{{"role": "user", "content": "Go."}}], "tools": [{tool}]}}'
    answered = await at.http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert (answered.status_code, answered.json()["error"]["param"]) == (400, "tools")
    assert "tools has a number that is not finite" in answered.json()["error"]["message"]
    assert not a.requests


async def test_several_choices_are_several_runs_with_seeds_of_their_own(serve: Serve) -> None:
    a = ScriptedModel(["one", "two"])
    at = await serve({"a": a})
    reply = await at.openai().chat.completions.create(model="conductor-mini", messages=ASKED, n=2, seed=10)
    assert {choice.message.content for choice in reply.choices} == {"one", "two"}
    assert sorted(request.sampling.seed or 0 for request in a.requests) == [10, 11]
    assert reply.usage is not None
    assert (reply.usage.model_extra or {})["conductor"]["total"]["calls"] == 4


async def test_several_choices_are_streamed_concurrently(serve: Serve) -> None:
    at = await serve({"a": "one two three"})
    stream = await at.openai().chat.completions.create(model="conductor-mini", messages=ASKED, n=2, stream=True)
    said = {0: "", 1: ""}
    async for chunk in stream:
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
    assert said == {0: "one two three", 1: "one two three"}


async def test_the_failure_of_one_choice_ends_the_whole_stream(serve: Serve) -> None:
    read, ended, failures = asyncio.Event(), asyncio.Event(), [ModelError("the line went dead", model="a")]

    async def pause(_: str) -> None:
        await read.wait()
        if failures:
            raise failures.pop()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    at = await serve({"a": Paced("one two", pause)})
    stream = await at.openai().chat.completions.create(model="conductor-mini", messages=ASKED, n=2, stream=True)
    read.set()
    with pytest.raises(openai.APIError, match="the line went dead"):
        await asyncio.wait_for(listen(stream), SOON)
    await asyncio.wait_for(ended.wait(), SOON)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/chat/completions", {"messages": ASKED}),
        ("POST", "/v1/messages", {"messages": ASKED, "max_tokens": 9}),
        ("POST", "/v1/responses", {"input": "Say something."}),
        ("GET", "/v1/responses/{response}?stream=true", None),
        ("GET", "/feed?run={run}", None),
    ],
)
async def test_proxies_are_told_to_pass_each_event_on_at_once(
    serve: Serve, method: str, path: str, body: dict[str, Any] | None
) -> None:
    at = await serve()
    response = await at.openai().responses.create(model="conductor-mini", input="Say something.")
    path = path.format(response=response.id, run=response.id.replace("resp_", "run-"))
    sent = None if body is None else {"model": "conductor-mini", "stream": True} | body
    async with at.http.stream(method, path, json=sent) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["x-accel-buffering"] == "no"
        assert stream.headers["cache-control"] == "no-store, no-transform"


async def test_a_silent_stream_sends_heartbeats(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "HEARTBEAT_SECONDS", 0.05)
    at = await serve({"a": Gated("at last", lambda _: asyncio.sleep(1.0))})
    raw = await at.http.post(
        "/v1/chat/completions", json={"model": "conductor-mini", "messages": ASKED, "stream": True}
    )
    assert raw.text.count(": still at work\n\n") >= 2
    assert "last" in raw.text


@pytest.mark.parametrize(
    ("asked", "steps"),
    [
        ({"model": "conductor-mini"}, 2),
        ({"model": "conductor-ultra", "reasoning_effort": "low"}, 2),
        ({"model": "conductor-ultra", "reasoning_effort": "minimal"}, 1),
    ],
)
async def test_a_planner_that_writes_too_many_steps_does_not_lose_the_one_that_answers(
    serve: Serve, asked: dict[str, Any], steps: int
) -> None:
    three = plan((0, "Look.", []), (0, "Count.", []), (1, "Combine.", ["all"]))
    at = await serve(planner=ScriptedModel(lambda _: three))

    reply = await at.openai().chat.completions.create(
        messages=ASKED, extra_body={"conductor": {"limits": {"rounds": 1}}}, **asked
    )

    assert reply.choices[0].message.content == "from b"
    brief = (reply.model_extra or {})["conductor"]["rounds"][0]
    assert len(brief["steps"]) == steps
    assert brief["steps"][-1]["subtask"].endswith("Combine.")
    assert f"a plan of 3 steps was shortened to {steps}" in brief["plan"]["repairs"]


async def test_a_low_effort_makes_a_shorter_plan(serve: Serve) -> None:
    at = await serve({"a": "from a", "b": "from b"}, TWO_STEPS)
    reply = await at.openai().chat.completions.create(
        model="conductor-ultra", messages=ASKED, reasoning_effort="minimal", extra_body={"conductor": {"trace": "full"}}
    )
    trace = (reply.model_extra or {})["conductor"]["trace"]
    assert (trace["limits"]["steps"], trace["limits"]["rounds"]) == (1, 1)
    assert len(trace["rounds"][0]["results"]) == 1


async def test_a_policy_of_the_request_excludes_a_worker(serve: Serve) -> None:
    a = ScriptedModel([])
    at = await serve({"a": a, "b": "from b"}, ScriptedModel([plan((1, "Say it.", []))]))
    extra = {"conductor": {"policy": {"deny": ["a"]}}}
    reply = await at.openai().chat.completions.create(model="conductor-mini", messages=ASKED, extra_body=extra)
    assert reply.choices[0].message.content == "from b"
    assert not a.requests


@pytest.mark.parametrize(
    ("wrong", "param", "says"),
    [
        ({"logprobs": True}, "logprobs", "logprobs is not supported"),
        ({"n": 99}, "n", "less than or equal to 8"),
        ({"functions": [{"name": "f"}]}, "functions", "functions is not supported; write tools"),
        ({"function_call": {"name": "f"}}, "function_call", "function_call is not supported; write tool_choice"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "reasoning_effort must be 'none', 'minimal'"),
        ({"messages": "hello"}, "messages", "messages must be an array"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", r"messages\.0\.content is missing"),
        ({"messages": [{"role": "narrator"}]}, "messages.0", r"messages\.0 has the unsupported role 'narrator'; write"),
        ({"messages": [{"content": "hello"}]}, "messages.0", r"messages\.0 has no role; add it"),
        ({"conductor": {"policy": {"deny": ["nobody"]}}}, "conductor.policy.deny", "there are only a, b"),
        ({"conductor": {"limit": {}}}, "conductor.limit", "unknown parameter"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages.0.content.0",
            r"messages\.0\.content\.0 has the unsupported type 'input_audio'; write one of 'text', 'image_url', 'file'",
        ),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, None, "not among the tools"),
        ({"messages": [{"role": "user", "content": " "}]}, None, "the question is empty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]}]},
            "image_url",
            "or an https: one",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "JVBERi0="}}]}]},
            "file_data",
            "a document must be a data:TYPE;base64,... address",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]},
            "messages.0.content.0.file.file_id",
            r"file_id is not supported, because workers of several vendors share no files; send the content instead",
        ),
    ],
)
async def test_unsupported_parameters_are_rejected_by_name(
    serve: Serve, wrong: dict[str, Any], param: str | None, says: str
) -> None:
    at = await serve()
    body = {"model": "conductor-mini", "messages": ASKED} | wrong
    client = at.openai()
    with pytest.raises(openai.BadRequestError, match=says) as caught:
        await client.post("/chat/completions", body=body, cast_to=object)
    assert (caught.value.param or "").startswith(param or "")


async def test_a_body_that_is_no_object_is_called_that(serve: Serve) -> None:
    reply = await (await serve()).http.post("/v1/chat/completions", json=[])
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, "the body must be an object")


async def test_ignored_parameters_are_listed_in_the_response(serve: Serve) -> None:
    at = await serve()
    raw = await at.openai().chat.completions.with_raw_response.create(
        model="conductor-mini",
        messages=ASKED,
        prompt_cache_key="k",
        prompt_cache_options={"mode": "explicit"},
        frequency_penalty=0,
    )
    assert raw.headers["x-conductor-ignored"] == "prompt_cache_key, prompt_cache_options"


@pytest.mark.parametrize(("newer", "ignored", "effective"), [(60, "max_tokens", 60), (50, None, 50), (None, None, 50)])
async def test_of_two_limits_of_the_answer_the_older_parameter_is_ignored_by_name(
    serve: Serve, newer: int | None, ignored: str | None, effective: int
) -> None:
    a = ScriptedModel("short")
    at = await serve({"a": a})
    reply = await post(at, max_tokens=50, max_completion_tokens=newer)
    assert reply.headers.get("x-conductor-ignored") == ignored
    assert a.requests[0].sampling.max_tokens == effective


async def test_options_of_a_stream_without_effect_are_ignored(serve: Serve) -> None:
    at = await serve()
    options = {"include_usage": True, "include_obfuscation": True}
    body = {"model": "conductor-mini", "messages": ASKED, "stream": True, "stream_options": options}
    chat = await at.http.post("/v1/chat/completions", json=body)
    body = {"model": "conductor-mini", "input": "Say it.", "stream": True, "stream_options": options}
    del options["include_usage"]
    responses = await at.http.post("/v1/responses", json=body)
    for reply in (chat, responses):
        assert reply.headers["x-conductor-ignored"] == "stream_options.include_obfuscation"
    assert '"total_tokens"' in chat.text


HARMLESS: dict[str, Any] = {
    "frequency_penalty": 0.5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "reasoning_effort": "xhigh",
    "service_tier": "flex",
    "top_k": 5,
    "verbosity": "low",
}


async def test_parameters_without_effect_are_ignored_unless_the_server_is_strict(serve: Serve) -> None:
    at = await serve()
    messages = [{"role": "user", "content": [{"type": "text", "text": "Say it.", "text\r\nx: ü": 1}]}]
    body = {"model": "conductor-mini", "messages": messages} | HARMLESS
    reply = await at.http.post("/v1/chat/completions", json=body)
    assert reply.json()["choices"][0]["message"]["content"] == "from a"
    ignored = reply.headers["x-conductor-ignored"].split(", ")
    assert sorted(ignored) == sorted([*HARMLESS, "messages.content.text??x???"])
    strict = await serve(intake={"strict": True})
    for name in HARMLESS.keys() - {"reasoning_effort"}:
        body = {"model": "conductor-mini", "messages": ASKED, name: HARMLESS[name]}
        rejected = await strict.http.post("/v1/chat/completions", json=body)
        assert rejected.status_code == 400
        assert rejected.json()["error"]["message"].startswith(f"{name} is ")


async def test_the_header_of_ignored_parameters_is_bounded(serve: Serve) -> None:
    at = await serve()
    body = {"model": "conductor-mini", "messages": ASKED} | {f"{number}" * 99: 1 for number in range(1000)}
    reply = await at.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200
    assert len(reply.headers["x-conductor-ignored"]) < 4096


async def test_errors_are_raised_as_the_sdks_own_exceptions(serve: Serve) -> None:
    at = await serve({"a": ScriptedModel([ModelError("out of order", model="a")]), "b": ScriptedModel([])})
    client = at.openai()
    with pytest.raises(openai.NotFoundError, match="available models: conductor-mini, conductor-ultra"):
        await client.chat.completions.create(model="gpt-5", messages=ASKED)
    extra: Any = {"conductor": {"policy": {"allow": ["a"]}}}
    with pytest.raises(openai.InternalServerError, match="out of order") as caught:
        await client.chat.completions.create(model="conductor-mini", messages=ASKED, extra_body=extra)
    run = caught.value.response.headers["x-conductor-run"]
    assert (await at.http.get(f"/v1/runs/{run}")).json()["status"] == "failed"
    extra = {"conductor": {"limits": {"usd": "0.000001"}, "policy": {"single": "b"}}}
    dear = await serve({"b": ScriptedModel("dear", price=Price(input=Decimal(5), output=Decimal(5)))})
    with pytest.raises(openai.BadRequestError, match="refused before anything was spent"):
        await dear.openai().chat.completions.create(model="conductor-mini", messages=ASKED, extra_body=extra)


async def test_a_deadline_is_reported_as_such(serve: Serve) -> None:
    at = await serve({"a": Gated("late", forever), "b": Gated("late", forever)})
    with pytest.raises(openai.InternalServerError, match=r"limits.seconds=0.2") as caught:
        await at.openai().chat.completions.create(
            model="conductor-mini", messages=ASKED, extra_body={"conductor": {"limits": {"seconds": 0.2}}}
        )
    assert caught.value.status_code == 504
    assert caught.value.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_cancels_the_call_to_the_worker(serve: Serve, stream: bool) -> None:
    a = Gated("never", forever)
    at = await serve({"a": a})
    asked: Any = {"model": "conductor-mini", "messages": ASKED, "stream": stream}

    async def ask() -> None:
        await listen(await at.openai().chat.completions.create(**asked))

    await hang_up(ask(), once=a.asked)
    await until(lambda: not a.held)


async def test_models_are_listed_by_alias_and_pinned_name(serve: Serve) -> None:
    models = {"house": {"profile": "mini", "released": "2026-01-02", "limits": {"usd": "0.5"}}}
    at = await serve(models=models)
    listed = [model.id async for model in at.openai().models.list()]
    assert listed == [
        "conductor-mini",
        "conductor-mini-2026-11-21",
        "conductor-ultra",
        "conductor-ultra-2026-11-21",
        "house",
        "house-2026-01-02",
    ]
    assert [model.id async for model in at.anthropic().models.list()] == listed
    reply = await at.openai().chat.completions.create(model="house-2026-01-02", messages=ASKED)
    assert reply.model == "house-2026-01-02"
