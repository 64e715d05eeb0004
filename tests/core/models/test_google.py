"""Google's own behaviour: requests and replies of its `generateContent` protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from core.runs import SOON
from rl_conductor.errors import AuthenticationError, BadRequestError, BadResponseError, ConfigError, ModelError
from rl_conductor.models.base import collect
from rl_conductor.models.google.adapter import GoogleModel
from rl_conductor.types import (
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

from .wire.base import SECRET, Failure, Said, Seen
from .wire.google import GoogleWire

HELLO = Request.user("hello")
CALL = ToolCall(id="c1", name="weather", arguments='{"city": "Kyiv"}')
OTHER = ToolCall(id="c2", name="clock", arguments="{}")
SIGNATURE = "c2lnbmVk"


class Odd(GoogleWire):
    """The same service with replies that only it can give; the model's name says which."""

    def whole(self, seen: Seen, said: Said) -> Any:
        """A reply with the finish reason, the block or the parts that the scenario names."""
        reply = super().whole(seen, said)
        candidate = reply["candidates"][0]
        if seen.scenario.startswith("finish-"):
            candidate["finishReason"] = seen.scenario.removeprefix("finish-")
            candidate["continuationToken"] = "dG9rZW4="
        if seen.scenario == "blocked":
            return {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": reply["usageMetadata"]}
        if seen.scenario == "named-call":
            candidate["content"]["parts"] = [{"functionCall": {"id": "fc_9", "name": "clock"}}]
        if seen.scenario == "japanese-call":
            candidate["content"]["parts"] = [{"functionCall": {"name": "clock", "args": {"city": "東京"}}}]
        if seen.scenario == "signed":
            thought = {"text": "hm", "thought": True, "thoughtSignature": SIGNATURE}
            candidate["content"]["parts"] = [thought, {"text": "42", "thoughtSignature": SIGNATURE}]
        if seen.scenario == "tool-tokens":
            reply["usageMetadata"]["toolUsePromptTokenCount"] = 50
        return reply

    def events(self, seen: Seen, said: Said) -> list[str]:
        """The event of a blocked prompt, or a signature that comes alone, in an empty piece of text."""
        if seen.scenario == "held-blocked":
            return ['data: {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}\n\n']
        events = super().events(seen, said)
        if seen.scenario == "signed":
            parts = [{"text": "", "thoughtSignature": SIGNATURE}]
            chunk = {"candidates": [{"content": {"role": "model", "parts": parts}}]}
            events.insert(-1, f"data: {json.dumps(chunk)}\n\n")
        return events

    def failure(self, scenario: str) -> Failure:
        """A wrong key, as the Gemini API says it: with the status of a malformed request."""
        if scenario == "unauthorized":
            info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
            message = "API key not valid. Please pass a valid API key."
            error = {"code": 400, "message": message, "status": "INVALID_ARGUMENT", "details": [info]}
            return Failure(400, {"error": error})
        if scenario == "rate-limit":
            return Failure(429, {"error": {"code": 429, "message": "Slow down."}}, {"Retry-After": "3"})
        return super().failure(scenario)


@pytest.fixture(scope="module")
def service() -> Iterator[Odd]:
    with Odd.running() as service:
        yield service


@pytest.fixture
async def ask(service: Odd) -> AsyncIterator[Any]:
    """Ask the scenario; the answer is what the service saw."""
    service.requests.clear()
    model = GoogleModel("echo", base_url=service.url, api_key=SECRET)

    async def asked(*messages: Message, **wishes: Any) -> Any:
        await model.complete(Request(messages=messages or HELLO.messages, **wishes))
        return service.requests[-1].body

    yield asked
    await model.aclose()


@pytest.fixture
async def model(request: pytest.FixtureRequest, service: Odd) -> AsyncIterator[GoogleModel]:
    """The model that the test's parameter names."""
    model = GoogleModel(request.param, base_url=service.url, api_key=SECRET)
    yield model
    await model.aclose()


def named(*scenarios: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", scenarios, indirect=True)


# ----------------------------------------------------------------------------------------- messages


async def test_turns_are_of_user_and_model_and_system_messages_stand_apart(ask: Any) -> None:
    body = await ask(
        Message.system("Be brief."),
        Message.user("one"),
        Message.user("two"),
        Message.assistant("three"),
        Message.system("Be kind."),
        Message.user("four"),
    )
    assert [part["text"] for part in body["systemInstruction"]["parts"]] == ["Be brief.\n\nBe kind."]
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "one"}, {"text": "two"}]},
        {"role": "model", "parts": [{"text": "three"}]},
        {"role": "user", "parts": [{"text": "four"}]},
    ]


async def test_tool_results_name_the_function_and_make_one_turn(ask: Any) -> None:
    picture = Message(role="tool", tool_call_id="c2", content=(TextPart(text="noon"), ImagePart(data="aGk=")))
    turn = Message.assistant(tool_calls=(CALL, OTHER))
    body = await ask(Message.user("?"), turn, Message.tool("c1", "9 degrees"), picture)
    called, answered = body["contents"][1:]
    assert [part["functionCall"] for part in called["parts"]] == [
        {"id": "c1", "name": "weather", "args": {"city": "Kyiv"}},
        {"id": "c2", "name": "clock", "args": {}},
    ]
    first, second = (part["functionResponse"] for part in answered["parts"])
    assert answered["role"] == "user"
    assert first == {"id": "c1", "name": "weather", "response": {"output": "9 degrees"}}
    assert (second["name"], second["response"]) == ("clock", {"output": "noon"})
    assert second["parts"][0]["inlineData"] == {"mimeType": "image/png", "data": "aGk="}


async def test_the_result_of_a_tool_that_failed_is_an_error(ask: Any) -> None:
    turn = Message.assistant(tool_calls=(CALL,))
    body = await ask(Message.user("?"), turn, Message.tool("c1", "no such city", is_error=True))
    assert body["contents"][2]["parts"][0]["functionResponse"]["response"] == {"error": "no such city"}


async def test_a_result_of_no_known_call_is_refused_before_the_call(ask: Any, service: Odd) -> None:
    with pytest.raises(BadRequestError, match="c7"):
        await ask(Message.user("?"), Message.tool("c7", "9 degrees"))
    assert not service.requests


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (ImagePart(data="aGk="), {"inlineData": {"data": "aGk=", "mimeType": "image/png"}}),
        (FilePart(data="aGk="), {"inlineData": {"data": "aGk=", "mimeType": "application/pdf"}}),
        (
            ImagePart(url="https://example.org/cat.png"),
            {"fileData": {"fileUri": "https://example.org/cat.png", "mimeType": "image/png"}},
        ),
        (
            ImagePart(url="https://example.org/cat.jpg?size=1"),
            {"fileData": {"fileUri": "https://example.org/cat.jpg?size=1", "mimeType": "image/jpeg"}},
        ),
    ],
)
async def test_images_and_documents_become_parts(ask: Any, part: ContentPart, sent: dict[str, Any]) -> None:
    body = await ask(Message.user("look", part))
    assert body["contents"][0]["parts"][1] == sent


async def test_content_that_is_not_base64_is_refused_before_the_call(ask: Any, service: Odd) -> None:
    with pytest.raises(BadRequestError, match="base64"):
        await ask(Message.user("look", ImagePart(data="!")))
    assert not service.requests


# --------------------------------------------------------------------------------- calls and thoughts


@named("parallel-tools")
@pytest.mark.parametrize("way", ["whole", "streamed"])
async def test_a_calls_signature_goes_back_with_that_call(ask: Any, model: GoogleModel, way: str) -> None:
    reply = await (model.complete(HELLO) if way == "whole" else collect(model.stream(HELLO)))
    first, second = reply.message.tool_calls
    body = await ask(
        *HELLO.messages, reply.message, Message.tool(first.id, "9 degrees"), Message.tool(second.id, "noon")
    )
    parts = body["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [SIGNATURE, None]
    assert [part["functionCall"]["name"] for part in parts] == ["weather", "clock"]


async def test_calls_of_other_models_are_marked_as_unsigned(ask: Any) -> None:
    thought = ReasoningPart(text="hm", signature="anthropic:thinking:c2lnbmVk")
    turn = Message(role="assistant", content=(thought,), tool_calls=(CALL, OTHER))
    body = await ask(Message.user("?"), turn, Message.tool("c1", "9 degrees"), Message.tool("c2", "noon"))
    first, second = body["contents"][1]["parts"]
    assert (
        first["thoughtSignature"] == "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
    )  # skip_thought_signature_validator
    assert "thoughtSignature" not in second


@named("tools")
async def test_calls_without_an_id_get_one_that_is_new_and_always_the_same(model: GoogleModel) -> None:
    earlier = (Message.user("?"), Message.assistant(tool_calls=(CALL, OTHER)))
    results = (Message.tool("c1", "9 degrees"), Message.tool("c2", "noon"))
    request = Request(messages=(*earlier, *results))
    ids = [(await model.complete(request)).message.tool_calls[0].id for _ in range(2)]
    assert ids == ["call_2", "call_2"]
    assert (await model.complete(HELLO)).message.tool_calls[0].id == "call_0"


@named("named-call")
async def test_a_calls_own_id_is_kept_and_no_arguments_are_an_empty_object(model: GoogleModel) -> None:
    reply = await model.complete(HELLO)
    assert reply.message.tool_calls == (ToolCall(id="fc_9", name="clock", arguments="{}"),)
    assert reply.finish_reason == "tool_calls"


@named("japanese-call")
async def test_arguments_of_a_call_keep_their_characters(model: GoogleModel) -> None:
    assert (await model.complete(HELLO)).message.tool_calls[0].arguments == '{"city": "東京"}'


@named("signed")
async def test_signed_thoughts_and_texts_go_back_signed(ask: Any, model: GoogleModel) -> None:
    reply = await model.complete(HELLO)
    body = await ask(*HELLO.messages, reply.message, Message.user("go on"))
    assert reply.text == "42"
    assert body["contents"][1]["parts"] == [
        {"text": "hm", "thought": True, "thoughtSignature": SIGNATURE},
        {"text": "42"},
        {"text": "", "thoughtSignature": SIGNATURE},
    ]


@named("signed")
async def test_a_signature_that_comes_alone_is_kept(ask: Any, model: GoogleModel) -> None:
    reply = await collect(model.stream(HELLO))
    body = await ask(*HELLO.messages, reply.message, Message.user("go on"))
    assert reply.text == "You said: hello"
    assert body["contents"][1]["parts"][-1] == {"text": "", "thoughtSignature": SIGNATURE}


@named("reasoning")
async def test_a_thought_without_a_signature_is_not_sent_back(ask: Any, model: GoogleModel) -> None:
    reply = await model.complete(HELLO)
    body = await ask(*HELLO.messages, reply.message, Message.user("go on"))
    assert body["contents"][1]["parts"] == [{"text": "42"}]


# ------------------------------------------------------------------------------------------- wishes


async def test_a_plain_request_sends_the_conversation_alone(ask: Any) -> None:
    body = await ask()
    assert body == {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("weather", {"mode": "ANY", "allowedFunctionNames": ["weather"]}),
    ],
)
async def test_tools_and_the_choice_of_them_are_sent(ask: Any, choice: str, sent: dict[str, Any]) -> None:
    tool = Tool(name="weather", description="Now.", parameters={"type": "object", "properties": {}})
    body = await ask(tools=(tool,), tool_choice=choice)
    assert body["toolConfig"]["functionCallingConfig"] == sent
    declared = {"name": "weather", "description": "Now.", "parametersJsonSchema": tool.parameters}
    assert body["tools"] == [{"functionDeclarations": [declared]}]


async def test_a_limit_to_one_call_is_left_out_as_calls_after_the_first_are_dropped(ask: Any) -> None:
    body = await ask(tools=(Tool(name="weather"),), parallel_tool_calls=False)
    assert body["toolConfig"]["functionCallingConfig"] == {"mode": "AUTO"}


@pytest.mark.parametrize("schema", [None, {"type": "object", "properties": {"a_b": {"type": "string"}}}])
async def test_json_is_asked_for_with_and_without_a_schema(ask: Any, schema: dict[str, Any] | None) -> None:
    config = (await ask(response_format=JsonFormat(json_schema=schema)))["generationConfig"]
    assert config["responseMimeType"] == "application/json"
    assert config.get("responseJsonSchema") == schema


@pytest.mark.parametrize(
    ("model", "thinking"),
    [
        ("gemini-3-pro", {"includeThoughts": True, "thinkingLevel": "MEDIUM"}),
        ("gemini-2.5-flash", {"includeThoughts": True, "thinkingBudget": 8192}),
    ],
    indirect=["model"],
)
async def test_effort_is_a_level_or_a_budget_of_tokens(
    model: GoogleModel, service: Odd, thinking: dict[str, Any]
) -> None:
    await model.complete(HELLO.model_copy(update={"sampling": Sampling(effort="medium")}))
    assert service.requests[-1].body["generationConfig"]["thinkingConfig"] == thinking


# ------------------------------------------------------------------------------------------ replies


@pytest.mark.parametrize(
    ("model", "finish"),
    [
        ("finish-STOP", "stop"),
        ("finish-MAX_TOKENS", "length"),
        ("finish-CONTINUATION", "length"),
        ("finish-SAFETY", "content_filter"),
        ("finish-RECITATION", "content_filter"),
        ("finish-PROHIBITED_CONTENT", "content_filter"),
        ("finish-SPII", "content_filter"),
        ("finish-IMAGE_SAFETY", "content_filter"),
    ],
    indirect=["model"],
)
async def test_each_finish_reason_is_one_of_ours(model: GoogleModel, service: Odd, finish: str) -> None:
    service.requests.clear()
    assert (await model.complete(HELLO)).finish_reason == finish
    assert len(service.requests) == 1


@named("finish-MALFORMED_FUNCTION_CALL", "finish-OTHER", "finish-UNEXPECTED_TOOL_CALL")
async def test_a_reply_that_ended_in_a_fault_is_no_reply(model: GoogleModel) -> None:
    with pytest.raises(BadResponseError, match=model.name.partition("-")[2]) as caught:
        await model.complete(HELLO)
    assert caught.value.retryable


@named("echo", "reasoning", "parallel-tools")
async def test_a_streamed_reply_is_the_whole_one(model: GoogleModel) -> None:
    assert (await collect(model.stream(HELLO))).message == (await model.complete(HELLO)).message


@named("blocked")
async def test_a_blocked_prompt_was_withheld_by_the_filter(model: GoogleModel) -> None:
    with pytest.raises(BadResponseError, match="content filter") as caught:
        await model.complete(HELLO)
    assert not caught.value.retryable


@named("held-blocked")
async def test_a_blocked_prompt_does_not_wait_for_the_end_of_its_connection(model: GoogleModel) -> None:
    with pytest.raises(BadResponseError, match="content filter") as caught:
        await collect(model.stream(HELLO.model_copy(update={"timeout": SOON})))
    assert not caught.value.retryable


@named("tool-tokens")
async def test_tokens_of_tool_results_are_input_too(model: GoogleModel) -> None:
    assert (await model.complete(HELLO)).usage.input_tokens == 53


@named("unauthorized")
async def test_a_wrong_key_is_known_under_the_status_of_a_bad_request(model: GoogleModel) -> None:
    with pytest.raises(AuthenticationError) as caught:
        await model.complete(HELLO)
    assert caught.value.status == 400


@named("rate-limit")
async def test_the_wait_may_stand_in_the_header(model: GoogleModel) -> None:
    with pytest.raises(ModelError) as caught:
        await model.complete(HELLO)
    assert caught.value.retry_after == 3


# --------------------------------------------------------------------------------------------- keys


def test_a_missing_key_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="GEMINI_API_KEY"):
        GoogleModel("gemini-2.5-flash")


@pytest.mark.parametrize("variable", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
def test_the_environments_key_and_the_known_price_are_taken(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.setenv(variable, SECRET)
    model = GoogleModel("gemini-2.5-flash")
    assert model.price is not None
    assert SECRET not in repr(model)


async def test_the_environments_key_is_never_sent_to_another_host(
    service: Odd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", SECRET)
    model = GoogleModel("echo", base_url=service.url)
    with pytest.raises(ModelError):  # this service wants it
        await model.complete(HELLO)
    await model.aclose()
    assert SECRET not in json.dumps(service.requests[-1].headers)
    assert model.price is None
