"""Replies of Google's protocol that can't be used."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rl_conductor.errors import (
    BadResponseError,
    ConfigError,
    ContextLengthError,
    ModelError,
    RateLimitError,
)
from rl_conductor.models.base import collect
from rl_conductor.models.google.adapter import GoogleModel
from rl_conductor.models.google.reply import Reply
from rl_conductor.models.google.wire import body_of
from rl_conductor.types import Message, ReasoningPart, Request

from .wire.base import SECRET, Failure, Said, Seen
from .wire.google import RETRY_INFO, GoogleWire

HELLO = Request.user("hello")
QUOTA = {"code": 429, "message": f"Quota of {SECRET}.", "status": "RESOURCE_EXHAUSTED", "details": [RETRY_INFO]}


class Faulty(GoogleWire):
    """The service in states of which only it knows; the model's name says which."""

    def read(self, wire: Any) -> Seen:
        """The request; models called `status-...` fail."""
        seen = super().read(wire)
        self.scenario = seen.scenario
        return seen if not seen.scenario.startswith("status-") else Seen("server-error", stream=seen.stream)

    def whole(self, seen: Seen, said: Said) -> Any:
        """A reply, or an error with the status of a success."""
        return {"error": QUOTA} if seen.scenario == "bare-object" else super().whole(seen, said)

    def events(self, seen: Seen, said: Said) -> list[str]:
        """A reply that breaks off with an error."""
        if seen.scenario == "finish-in-each-chunk":
            return [
                event.replace('"index": 0', '"index": 0, "finishReason": "STOP"')
                for event in super().events(seen, said)
            ]
        events = super().events(seen, said)[:1]
        errors: dict[str, str] = {
            "bare-object": json.dumps({"error": QUOTA}, indent=2),
            "bare-list": json.dumps([{"error": QUOTA}], indent=2) + "\r\n\r\n",
            "bare-text": '{"error": "It broke."}\n',
            "bare-code": '{"error": {"code": "UNKNOWN", "message": "It broke."}}\n',
            "bare-context": '{"error": {"code": 400, "message": "The input token count exceeds 5."}}\n',
        }
        return [*events, errors[seen.scenario]] if seen.scenario in errors else super().events(seen, said)

    def failure(self, scenario: str) -> Failure:
        """An error whose body has an unusual shape."""
        bodies: dict[str, Any] = {
            "status-list": [{"error": QUOTA}],
            "status-flat": {"code": 429, "message": "Slow down."},
            "status-number": 7,
            "status-nothing": {"error": None},
        }
        return Failure(429, bodies[self.scenario], {"Retry-After": "3"})


@pytest.fixture(scope="module")
def service() -> Iterator[Faulty]:
    with Faulty.running() as service:
        yield service


@pytest.fixture
async def model(request: pytest.FixtureRequest, service: Faulty) -> AsyncIterator[GoogleModel]:
    """The model that the test's parameter names."""
    model = GoogleModel(request.param, base_url=service.url, api_key=SECRET)
    yield model
    await model.aclose()


def named(*scenarios: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", scenarios, indirect=True)


# ------------------------------------------------------------------------------------------- errors


@named("bare-object", "bare-list")
async def test_an_error_in_mid_stream_may_have_no_data_prefix(model: GoogleModel) -> None:
    with pytest.raises(RateLimitError, match=r"Quota of \[secret\]") as caught:
        await collect(model.stream(HELLO))
    assert (caught.value.status, caught.value.retry_after) == (429, 7)


@named("bare-object")
async def test_an_error_may_come_with_the_status_of_a_success(model: GoogleModel) -> None:
    with pytest.raises(RateLimitError, match=r"Quota of \[secret\]"):
        await model.complete(HELLO)


@named("bare-text", "bare-code")
async def test_an_error_in_mid_stream_without_a_status_is_the_servers(model: GoogleModel) -> None:
    with pytest.raises(ModelError, match="It broke") as caught:
        await collect(model.stream(HELLO))
    assert (caught.value.status, caught.value.retryable) == (500, True)


@named("bare-context")
async def test_a_request_that_is_too_long_may_be_known_late(model: GoogleModel) -> None:
    with pytest.raises(ContextLengthError):
        await collect(model.stream(HELLO))


@named("status-list", "status-flat", "status-number", "status-nothing")
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_error_of_any_shape_has_the_status_of_its_response(model: GoogleModel, streamed: bool) -> None:
    with pytest.raises(RateLimitError, match=r"google:status-[a-z]+: .") as caught:
        await (collect(model.stream(HELLO)) if streamed else model.complete(HELLO))
    assert (caught.value.status, caught.value.retry_after) == (429, 3)
    assert SECRET not in str(caught.value)


@named("html")
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_web_page_is_named_as_one(model: GoogleModel, service: Faulty, streamed: bool) -> None:
    with pytest.raises(BadResponseError, match=f"a web page came instead of a reply from {service.url}"):
        await (collect(model.stream(HELLO)) if streamed else model.complete(HELLO))


@named("echo")
async def test_a_stream_that_was_read_to_its_end_leaves_its_connection_to_the_next(
    model: GoogleModel, service: Faulty
) -> None:
    before = service.connections
    for _ in range(3):
        await collect(model.stream(HELLO))
    assert service.connections == before + 1


@named("echo")
async def test_the_server_learns_the_deadline_in_whole_seconds(model: GoogleModel, service: Faulty) -> None:
    for timeout, sent in ((None, "600"), (20.5, "21"), (0.9, "1")):
        await model.complete(HELLO.model_copy(update={"timeout": timeout}))
        assert service.last.headers["x-server-timeout"] == sent


# ------------------------------------------------------------------------------------------ replies


def chunk(part: Any, **fields: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]} | fields


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "text",
        {"candidates": {}},
        {"candidates": [None]},
        {"candidates": [{"content": []}]},
        {"candidates": [{"finishReason": 1}]},
        chunk("text"),
        chunk({"text": 1}),
        chunk({"text": "hm", "thought": "perhaps"}),
        chunk({"text": "hm", "thoughtSignature": 1}),
        chunk({"text": "hm", "thoughtSignature": "a:b"}),
        chunk({"functionCall": "clock"}),
        chunk({"functionCall": {}}),
        chunk({"functionCall": {"name": ["clock"]}}),
        chunk({"functionCall": {"name": "clock", "args": "now"}}),
        chunk({"text": "hm"}, modelVersion=1),
        chunk({"text": "hm"}, usageMetadata=7),
        chunk({"text": "hm"}, usageMetadata={"promptTokenCount": -1}),
        chunk({"text": "hm"}, usageMetadata={"promptTokenCount": "many"}),
        {"promptFeedback": {"blockReason": {}}},
    ],
)
def test_a_reply_with_values_of_wrong_types_is_a_bad_response(value: object) -> None:
    with pytest.raises(BadResponseError):
        Reply("google:m").add(value)


def test_an_unusable_reply_is_paid_for() -> None:
    reply = Reply("google:m")
    counts = {"promptTokenCount": 7, "candidatesTokenCount": 3}
    reply.add({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}], "usageMetadata": counts})
    with pytest.raises(BadResponseError, match="MALFORMED_FUNCTION_CALL") as caught:
        reply.completion(None)
    assert caught.value.usage is not None
    assert caught.value.usage.total_tokens == 10


def test_an_error_quotes_only_the_beginning_of_a_long_finish_reason() -> None:
    reply = Reply("google:m")
    reply.add({"candidates": [{"finishReason": "OTHER" * 20_000}]})
    with pytest.raises(BadResponseError, match="the reply ended with 'OTHEROTHER") as caught:
        reply.completion(None)
    assert len(str(caught.value)) <= 1000


def test_unknown_and_empty_fields_are_ignored() -> None:
    reply = Reply("google:m")
    reply.add({"candidates": None, "usageMetadata": None, "promptFeedback": {}, "modelVersion": None, "new": 1})
    reply.add({"candidates": [{"content": {"parts": None}}, {"content": {"parts": [{"text": "another"}]}}]})
    reply.add(chunk({"text": "hello", "new": {}}, usageMetadata={"promptTokenCount": "3", "candidatesTokenCount": 5}))
    completion = reply.completion(None)
    assert (completion.text, completion.model) == ("hello", "m")
    assert (completion.usage.input_tokens, completion.usage.output_tokens) == (3, 5)


def test_a_call_keeps_its_signature_even_if_its_id_has_colons() -> None:
    reply = Reply("google:m")
    reply.add(chunk({"functionCall": {"id": "a:b:c", "name": "clock"}, "thoughtSignature": "c2ln_-bmVk"}))
    message = reply.completion(None).message
    assert any(isinstance(part, ReasoningPart) for part in message.content)
    body = body_of(Request(messages=(*HELLO.messages, message, Message.tool("a:b:c", "noon"))), model="google:m")
    assert body["contents"][1]["parts"][0]["thoughtSignature"] == "c2ln_-bmVk"


# -------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["", "../secrets", "m?key=1", "m&n", "m#n", "m\x00"])
def test_a_name_that_would_change_the_address_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"name of a model|not a valid URL"):
        GoogleModel(name, api_key=SECRET)
