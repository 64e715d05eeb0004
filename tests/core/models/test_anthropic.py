"""Anthropic's own behaviour: requests and replies of its Messages API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pydantic import BaseModel, Field

from rl_conductor.errors import AuthenticationError, BadRequestError, BadResponseError, ConfigError, ModelError
from rl_conductor.models.anthropic.adapter import AnthropicModel
from rl_conductor.models.base import collect
from rl_conductor.prompting.planner_prompt import PromptSettings, planner_messages
from rl_conductor.types import (
    Card,
    ContentPart,
    FilePart,
    ImagePart,
    JsonFormat,
    Message,
    ReasoningPart,
    Request,
    Sampling,
    TextPart,
    Tool,
    ToolCall,
)
from rl_conductor.workflow.policy import Policy

from .wire.anthropic import AnthropicWire, event
from .wire.base import SECRET, Said, Seen

HELLO = Request.user("hello")
CALL = ToolCall(id="c1", name="weather", arguments='{"city": "Kyiv"}')
OTHER = ToolCall(id="c2", name="clock", arguments="{}")


class Odd(AnthropicWire):
    """The same service with replies that only it can give; the model's name says which."""

    def whole(self, seen: Seen, said: Said) -> Any:
        """A message whose stop reason or blocks the scenario names."""
        message = super().whole(seen, said)
        if seen.scenario.startswith("stop-"):
            message["stop_reason"] = seen.scenario.removeprefix("stop-") or None
        if seen.scenario == "redacted":
            message["content"].insert(0, {"type": "redacted_thinking", "data": "c2VjcmV0"})
        if seen.scenario == "unknown-block":
            message["content"].insert(0, {"type": "hologram", "voxels": []})
        return message

    def events(self, seen: Seen, said: Said) -> list[str]:
        """Arguments that the token limit cut off."""
        events = super().events(seen, said)
        if seen.scenario == "half-a-call":
            start = {"type": "tool_use", "id": "c1", "name": "write", "input": {}}
            delta = {"type": "input_json_delta", "partial_json": '{"path": "a", "text": "hel'}
            stop = {"stop_reason": "max_tokens", "stop_sequence": None}
            events[2:] = [
                event("content_block_start", index=0, content_block=start),
                event("content_block_delta", index=0, delta=delta),
                event("content_block_stop", index=0),
                event("message_delta", delta=stop, usage={"output_tokens": 9}),
                event("message_stop"),
            ]
        return events

    def broken_event(self, scenario: str) -> str:
        """Overload in the middle of a stream, under HTTP status 200."""
        return event("error", error={"type": "overloaded_error", "message": "Overloaded"})


@pytest.fixture(scope="module")
def service() -> Iterator[Odd]:
    with Odd.running() as service:
        yield service


@pytest.fixture
async def ask(service: Odd) -> AsyncIterator[Any]:
    """Ask the scenario; the answer is what the service saw."""
    service.requests.clear()
    model = AnthropicModel("echo", base_url=service.url, api_key=SECRET)

    async def asked(*messages: Message, **wishes: Any) -> Any:
        await model.complete(Request(messages=messages or HELLO.messages, **wishes))
        return without_marks(service.requests[-1].body)

    yield asked
    await model.aclose()


@pytest.fixture
async def model(request: pytest.FixtureRequest, service: Odd) -> AsyncIterator[AnthropicModel]:
    """The model that the test's parameter names."""
    model = AnthropicModel(request.param, base_url=service.url, api_key=SECRET)
    yield model
    await model.aclose()


def without_marks(value: Any) -> Any:
    """The body of a request without `cache_control`."""
    if isinstance(value, dict):
        return {name: without_marks(item) for name, item in value.items() if name != "cache_control"}
    return [without_marks(item) for item in value] if isinstance(value, list) else value


def marked(body: Any) -> list[str]:
    """The texts and types of the blocks with `cache_control`, in order."""
    blocks = [*body.get("system", []), *(block for turn in body["messages"] for block in turn["content"])]
    assert all(block["cache_control"] == {"type": "ephemeral"} for block in blocks if "cache_control" in block)
    return [block.get("text", block["type"]) for block in blocks if "cache_control" in block]


def named(*scenarios: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", scenarios, indirect=True)


# ----------------------------------------------------------------------------------------- messages


async def test_turns_of_one_role_are_merged_and_system_messages_stand_apart(ask: Any) -> None:
    body = await ask(
        Message.system("Be brief."),
        Message.user("one"),
        Message.user("two"),
        Message.assistant("three"),
        Message.system("Be kind."),
        Message.user("four"),
    )
    assert body["system"] == [{"type": "text", "text": "Be brief.\n\nBe kind."}]
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "three"}]},
        {"role": "user", "content": [{"type": "text", "text": "four"}]},
    ]


async def test_tool_results_make_one_user_turn_with_what_follows(ask: Any) -> None:
    picture = Message(role="tool", tool_call_id="c2", content=(TextPart(text="noon"), ImagePart(data="aGk=")))
    turn = Message.assistant("Let me look.", tool_calls=(CALL, OTHER))
    body = await ask(Message.user("?"), turn, Message.tool("c1", "9 degrees"), picture, Message.user("And?"))
    assert body["messages"][1]["content"] == [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Kyiv"}},
        {"type": "tool_use", "id": "c2", "name": "clock", "input": {}},
    ]
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    assert body["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "9 degrees"}]},
        {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "noon"}, image]},
        {"type": "text", "text": "And?"},
    ]


async def test_tools_of_earlier_turns_are_defined_but_not_offered(ask: Any) -> None:
    turn = Message.assistant(tool_calls=(CALL, OTHER, CALL))
    results = [Message.tool(call.id, "9") for call in turn.tool_calls]
    body = await ask(Message.user("?"), turn, *results, Message.assistant("Nine."), Message.user("And now?"))
    assert [tool["name"] for tool in body["tools"]] == ["weather", "clock"]
    assert body["tool_choice"] == {"type": "none"}


async def test_the_result_of_a_tool_that_failed_is_marked(ask: Any) -> None:
    turn = Message.assistant(tool_calls=(CALL,))
    body = await ask(Message.user("?"), turn, Message.tool("c1", "no such city", is_error=True))
    (result,) = body["messages"][2]["content"]
    assert (result["is_error"], result["content"][0]["text"]) == (True, "no such city")
    body = await ask(Message.user("?"), turn, Message.tool("c1", " ", is_error=True))
    assert body["messages"][2]["content"][0]["content"] == [{"type": "text", "text": "error"}]


@pytest.mark.parametrize("written", ['{"city": ', "[1]", "null"])
async def test_arguments_that_are_no_object_go_back_as_they_were_written(ask: Any, written: str) -> None:
    turn = Message.assistant(tool_calls=(ToolCall(id="c1", name="weather", arguments=written),))
    body = await ask(Message.user("?"), turn, Message.tool("c1", "not JSON"))
    assert body["messages"][1]["content"][0]["input"] == {"invalid_json": written}


async def test_blank_text_is_left_out_because_the_api_refuses_it(ask: Any) -> None:
    body = await ask(Message.user("one"), Message.assistant("\n"), Message.user("two", TextPart(text=" ")))
    assert [block["text"] for turn in body["messages"] for block in turn["content"]] == ["one", "two"]


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (
            ImagePart(media_type="image/webp", data="aGk="),
            {"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "aGk="}},
        ),
        (
            ImagePart(url="https://example.org/cat.png"),
            {"type": "image", "source": {"type": "url", "url": "https://example.org/cat.png"}},
        ),
        (
            FilePart(name="a.pdf", data="aGk="),
            {
                "type": "document",
                "title": "a.pdf",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
            },
        ),
        (
            FilePart(name="a.md", media_type="text/markdown", data="aGk="),
            {"type": "document", "title": "a.md", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}},
        ),
    ],
)
async def test_images_and_documents_become_blocks(ask: Any, part: ContentPart, block: dict[str, Any]) -> None:
    body = await ask(Message.user("look", part))
    assert body["messages"][0]["content"][1] == block


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (ImagePart(media_type="image/bmp", data="aGk="), "image/bmp.*image/png"),
        (FilePart(media_type="application/zip", data="aGk="), "application/zip.*application/pdf"),
        (FilePart(name="a.txt", media_type="text/plain", data="!"), "a.txt"),
    ],
)
async def test_media_that_the_api_cannot_take_are_refused_before_the_call(
    ask: Any, service: Odd, part: ContentPart, says: str
) -> None:
    with pytest.raises(BadRequestError, match=says):
        await ask(Message.user("look", part))
    assert not service.requests


# ------------------------------------------------------------------------------------- prompt caching


@pytest.mark.parametrize(
    ("messages", "marks"),
    [
        ([Message.user("one")], []),
        ([Message.user("look", ImagePart(url="https://example.org/cat.png"))], []),
        ([Message.system("Be brief."), Message.user("one")], ["Be brief."]),
        ([Message.user("one"), Message.assistant("two"), Message.user("three")], ["two"]),
        (
            [Message.user("one"), Message.assistant(tool_calls=(CALL,)), Message.tool("c1", "9")],
            ["tool_use", "tool_result"],
        ),
        ([Message.user("one", TextPart(text="two"), ImagePart(url="https://example.org/cat.png"))], ["two"]),
    ],
)
async def test_what_the_next_request_begins_with_is_cached(
    service: Odd, ask: Any, messages: list[Message], marks: list[str]
) -> None:
    await ask(*messages)

    assert marked(service.requests[-1].body) == marks


@named("reasoning")
async def test_a_thought_is_never_marked(service: Odd, ask: Any, model: AnthropicModel) -> None:
    thought = (await model.complete(HELLO)).message.content[0]
    await ask(
        Message.user("?"), Message(role="assistant", content=(TextPart(text="42"), thought)), Message.user("go on")
    )

    assert marked(service.requests[-1].body) == ["42"]


async def test_the_planners_prompt_is_cached_up_to_the_newest_turn(service: Odd, ask: Any) -> None:
    conversation = (Message.user("One."), Message.assistant("Two."), Message.user("Three."))
    cards = [Card(name="a"), Card(name="b")]
    settings = PromptSettings(form="object")
    await ask(*planner_messages(conversation, Policy().space(cards, max_steps=3), cards, settings, key="key"))

    system, example, turn = marked(service.requests[-1].body)
    assert system.startswith("You are a conductor.")
    assert example.endswith('"access":["all"]}]}')
    assert turn == "\n\n[user]\nThree."


# ----------------------------------------------------------------------------------------- thoughts


@named("reasoning")
@pytest.mark.parametrize("way", ["whole", "streamed"])
async def test_a_thought_goes_back_with_its_signature(ask: Any, model: AnthropicModel, way: str) -> None:
    reply = await (model.complete(HELLO) if way == "whole" else collect(model.stream(HELLO)))
    body = await ask(Message.user("?"), reply.message, Message.user("go on"))
    thought = {"type": "thinking", "thinking": "six times seven", "signature": "c2lnbmVk"}
    assert body["messages"][1]["content"] == [thought, {"type": "text", "text": "42"}]


@named("redacted")
async def test_a_redacted_thought_goes_back_as_it_came(ask: Any, model: AnthropicModel) -> None:
    reply = await model.complete(HELLO)
    body = await ask(Message.user("?"), reply.message, Message.user("go on"))
    assert body["messages"][1]["content"][0] == {"type": "redacted_thinking", "data": "c2VjcmV0"}
    assert reply.text == "You said: hello"


@pytest.mark.parametrize("signature", [None, "google:thought:c2lnbmVk", "c2lnbmVk"])
async def test_thoughts_of_other_models_are_not_sent(ask: Any, signature: str | None) -> None:
    thought = ReasoningPart(text="hm", signature=signature)
    turn = Message(role="assistant", content=(thought, TextPart(text="42")))
    body = await ask(Message.user("?"), turn, Message.user("go on"))
    assert body["messages"][1]["content"] == [{"type": "text", "text": "42"}]


# ------------------------------------------------------------------------------------------- wishes


async def test_a_plain_request_sends_only_what_the_api_insists_on(ask: Any) -> None:
    assert set(await ask()) == {"model", "max_tokens", "messages"}
    assert (await ask())["max_tokens"] == 4096


async def test_a_long_reply_may_be_asked_for_whole(ask: Any) -> None:
    assert (await ask(sampling=Sampling(max_tokens=100_000)))["max_tokens"] == 100_000


@pytest.mark.parametrize(
    ("choice", "parallel", "sent"),
    [
        ("auto", True, {"type": "auto", "disable_parallel_tool_use": False}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ("weather", False, {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}),
        ("none", False, {"type": "none"}),
    ],
)
async def test_the_choice_of_tools_is_sent(ask: Any, choice: str, parallel: bool, sent: dict[str, Any]) -> None:
    tool = Tool(name="weather", description="Now.", parameters={"type": "object", "properties": {}})
    body = await ask(tools=(tool,), tool_choice=choice, parallel_tool_calls=parallel)
    assert body["tool_choice"] == sent
    assert body["tools"] == [{"name": "weather", "description": "Now.", "input_schema": tool.parameters}]


async def test_a_schema_and_an_effort_go_into_the_output_config(ask: Any) -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    body = await ask(response_format=JsonFormat(json_schema=schema), sampling=Sampling(effort="minimal"))
    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": schema}}


class Kite(BaseModel):
    """As users write their schemas: with bounds, defaults and a field that may be missing."""

    name: str
    grams: int = Field(ge=1, le=900)
    tail: float | None = None


async def test_a_schema_is_told_in_the_words_that_the_api_takes(ask: Any) -> None:
    body = await ask(response_format=JsonFormat(json_schema=Kite.model_json_schema()))
    sent = body["output_config"]["format"]["schema"]
    assert sent["additionalProperties"] is False
    assert sent["properties"]["grams"].keys() == {"type", "title", "description"}
    assert "maximum: 900" in sent["properties"]["grams"]["description"]


async def test_a_list_of_types_is_told_as_alternatives(ask: Any) -> None:
    schema = {"type": "object", "properties": {"tail": {"type": ["number", "null"], "description": "Metres."}}}
    body = await ask(response_format=JsonFormat(json_schema=schema))
    tail = body["output_config"]["format"]["schema"]["properties"]["tail"]
    assert tail == {"anyOf": [{"type": "number", "description": "Metres."}, {"type": "null"}]}


@pytest.mark.parametrize("anything", [{}, True, {"type": "array", "items": [{"type": "string"}]}, {"$defs": []}])
async def test_a_schema_that_the_sdk_cannot_read_is_left_to_the_api(ask: Any, anything: Any) -> None:
    schema = {"type": "object", "properties": {"anything": anything}}
    body = await ask(response_format=JsonFormat(json_schema=schema))
    assert body["output_config"]["format"]["schema"] == schema


async def test_json_of_no_schema_is_refused_before_the_call(ask: Any, service: Odd) -> None:
    with pytest.raises(BadRequestError, match="json_schema"):
        await ask(response_format=JsonFormat())
    assert not service.requests


# ------------------------------------------------------------------------------------------ replies


@pytest.mark.parametrize(
    ("model", "finish"),
    [
        ("stop-end_turn", "stop"),
        ("stop-stop_sequence", "stop"),
        ("stop-something_new", "stop"),
        ("stop-max_tokens", "length"),
        ("stop-model_context_window_exceeded", "length"),
        ("stop-pause_turn", "length"),
        ("stop-refusal", "content_filter"),
        ("stop-tool_use", "tool_calls"),
    ],
    indirect=["model"],
)
async def test_each_stop_reason_is_one_of_ours(model: AnthropicModel, finish: str) -> None:
    assert (await model.complete(HELLO)).finish_reason == finish


@named("stop-")
async def test_a_reply_that_has_not_stopped_is_incomplete(model: AnthropicModel) -> None:
    with pytest.raises(BadResponseError):
        await model.complete(HELLO)


@named("reasoning", "parallel-tools")
async def test_a_streamed_reply_is_the_whole_one(model: AnthropicModel) -> None:
    assert (await collect(model.stream(HELLO))).message == (await model.complete(HELLO)).message


@named("unknown-block")
async def test_blocks_of_a_kind_not_known_yet_are_left_out(model: AnthropicModel) -> None:
    reply = await model.complete(HELLO)
    assert reply.message == Message.assistant("You said: hello")


@named("half-a-call")
async def test_arguments_cut_off_by_the_token_limit_stay_as_they_were_written(model: AnthropicModel) -> None:
    reply = await collect(model.stream(HELLO))
    assert reply.finish_reason == "length"
    assert reply.message.tool_calls[0].arguments == '{"path": "a", "text": "hel'


@named("breaks")
async def test_an_error_in_mid_stream_has_the_status_of_its_type(model: AnthropicModel) -> None:
    with pytest.raises(ModelError, match="Overloaded") as caught:
        await collect(model.stream(HELLO))
    assert caught.value.status == 529
    assert caught.value.retryable


class Gateway(AnthropicWire):
    """A gateway that ignores `stream`, and sends errors under the status 200."""

    stream_type = "application/json"

    def whole(self, seen: Seen, said: Said) -> Any:
        """A message, or an error."""
        reason = "the gateway has no key"
        messages: dict[str, Any] = {"no-key": reason, "no-key-in-detail": {"reasons": [reason]}}
        if seen.scenario in messages:
            return {"type": "error", "error": {"type": "authentication_error", "message": messages[seen.scenario]}}
        return super().whole(seen, said)

    def events(self, seen: Seen, said: Said) -> list[str]:
        """The same, as the only piece."""
        return [json.dumps(self.whole(seen, said))]


async def test_a_gateway_that_ignores_stream_is_understood() -> None:
    with Gateway.running() as service:
        model = AnthropicModel("usage", base_url=service.url, api_key=SECRET)
        whole = await model.complete(HELLO)
        deltas = [delta async for delta in model.stream(HELLO)]
        await model.aclose()
    assert "".join(delta.text for delta in deltas) == whole.text != ""
    assert deltas[-1].completion == whole


@pytest.mark.parametrize("scenario", ["no-key", "no-key-in-detail"])
async def test_an_error_under_the_status_of_a_success_is_told(scenario: str) -> None:
    with Gateway.running() as service:
        model = AnthropicModel(scenario, base_url=service.url, api_key=SECRET)
        for reply in (model.complete(HELLO), collect(model.stream(HELLO))):
            with pytest.raises(AuthenticationError, match="the gateway has no key"):
                await reply
        await model.aclose()


# --------------------------------------------------------------------------------------------- keys


def test_a_missing_key_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        AnthropicModel("claude-sonnet-4-5")


def test_the_environments_key_and_the_known_price_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    model = AnthropicModel("claude-sonnet-4-5")
    assert model.price is not None
    assert SECRET not in repr(model)


async def test_the_environments_key_is_never_sent_to_another_host(
    service: Odd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    model = AnthropicModel("echo", base_url=service.url)
    with pytest.raises(ModelError):  # this service wants it
        await model.complete(HELLO)
    await model.aclose()
    assert SECRET not in json.dumps(service.requests[-1].headers)
    assert model.price is None
