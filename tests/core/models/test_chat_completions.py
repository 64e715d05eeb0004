"""The protocol's translation, as plain functions: what odd servers send must be read right or refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from rl_conductor.errors import (
    BadRequestError,
    BadResponseError,
    ContextLengthError,
    ModelError,
    OverloadedError,
    RateLimitError,
)
from rl_conductor.models.openai.dialects import DIALECTS
from rl_conductor.models.openai.errors import refusal
from rl_conductor.models.openai.wire import Reply, options_of
from rl_conductor.types import (
    Completion,
    ImagePart,
    JsonFormat,
    Message,
    Price,
    ReasoningPart,
    Request,
    TextPart,
    Tool,
    ToolCall,
)

PRICE = Price(input=Decimal(1), output=Decimal(1))


def read(*frames: Any) -> Completion:
    reply = Reply("openai:m")
    for frame in frames:
        reply.add(frame)
    return reply.completion(PRICE)


def frame(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


def pieces(index: int | None, call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return frame(tool_calls=[{"index": index, "id": call_id, "function": function}])


# ------------------------------------------------------------------------------------------- replies


@pytest.mark.parametrize("said", ["eos", "stop_sequence", "end_turn", "stop"])
def test_any_word_for_a_natural_end_is_stop(said: str) -> None:
    assert read(frame(content="hi"), frame(said)).finish_reason == "stop"


@pytest.mark.parametrize(("said", "reason"), [("model_length", "length"), ("SAFETY", "content_filter")])
def test_the_words_of_other_vendors_for_an_end_that_is_not_natural_are_known(said: str, reason: str) -> None:
    assert read(frame(content="hi"), frame(said)).finish_reason == reason


@pytest.mark.parametrize(("tier", "unpriced"), [("default", 0), ("priority", 1), ("flex", 1)])
def test_a_call_of_a_tier_with_its_own_price_is_unpriced(tier: str, unpriced: int) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    reply = read(frame("stop", content="hi") | {"service_tier": tier}, {"choices": [], "usage": usage})
    assert reply.usage.unpriced_calls == unpriced
    assert reply.usage.total_tokens == 5


@pytest.mark.parametrize("said", [None, "", "error", "abort", "insufficient_system_resource"])
def test_a_reply_without_a_natural_end_is_refused(said: str | None) -> None:
    with pytest.raises(BadResponseError, match="broke off"):
        read(frame(content="hi"), frame(said))


@pytest.mark.parametrize("said", ["stop", "tool_calls", "function_call"])
def test_a_reply_with_calls_ends_in_calls_whatever_the_server_says(said: str) -> None:
    assert read(pieces(0, "a", "clock", "{}"), frame(said)).finish_reason == "tool_calls"


def test_calls_cut_at_the_token_limit_say_so() -> None:
    assert read(pieces(0, "a", "clock", '{"zo'), frame("length")).finish_reason == "length"


def test_fragments_of_interleaved_calls_find_their_own() -> None:
    reply = read(
        pieces(0, "a", "clock", ""),
        pieces(1, "b", "weather", '{"city"'),
        pieces(0, None, None, '{"zone": 1}'),
        pieces(1, "b", "weather", ": 2}"),
        frame("tool_calls"),
    )
    assert reply.message.tool_calls == (
        ToolCall(id="a", name="clock", arguments='{"zone": 1}'),
        ToolCall(id="b", name="weather", arguments='{"city": 2}'),
    )


@pytest.mark.parametrize("index", [0, None])
def test_calls_that_share_an_index_are_told_apart_by_their_ids(index: int | None) -> None:
    reply = read(pieces(index, "a", "clock", "{}"), pieces(index, "b", "clock", "{}"), frame("stop"))
    assert [call.id for call in reply.message.tool_calls] == ["a", "b"]


@pytest.mark.parametrize("call_id", ["call_0", "", None])
def test_calls_that_share_an_index_and_an_id_are_told_apart_by_their_complete_arguments(call_id: str | None) -> None:
    reply = read(
        pieces(0, call_id, "clock", '{"zone": '),
        pieces(0, call_id, "clock", '"UTC"}'),
        pieces(0, call_id, "clock", '{"zone": "CET"}'),
        frame("stop"),
    )
    assert [call.arguments for call in reply.message.tool_calls] == ['{"zone": "UTC"}', '{"zone": "CET"}']


@pytest.mark.parametrize("indices", [(0, 1), (None, None)])
def test_calls_without_ids_are_told_apart(indices: tuple[int | None, int | None]) -> None:
    reply = read(*(pieces(index, None, "clock", "") for index in indices), frame("stop"))
    assert [call.arguments for call in reply.message.tool_calls] == ["{}", "{}"]


def test_a_call_that_names_no_tool_is_refused() -> None:
    with pytest.raises(BadResponseError, match="names no tool"):
        read(pieces(0, "a", None, "{}"), frame("tool_calls"))


def test_a_character_that_a_server_splits_between_two_chunks_stays_one() -> None:
    reply = Reply("openai:m")
    chunks = [{"content": "a\ud83d", "reasoning": "\ud83d"}, {"content": "\ude00b", "reasoning": "\ude00"}]
    deltas = [reply.add(frame(**chunk)) for chunk in chunks]
    deltas.append(reply.add(frame("stop", content="c\ud83d")))
    completion = reply.completion(None)
    assert [delta.text for delta in deltas] == ["a", "😀b", "c?"]
    assert (completion.text, completion.message.reasoning) == ("a😀bc?", "😀")


def test_a_character_that_a_server_splits_between_fragments_of_arguments_stays_one() -> None:
    completion = read(pieces(0, "c1", "look", '{"at": "\ud83d'), pieces(0, None, None, '\ude00"}'), frame("tool_calls"))
    assert completion.message.tool_calls[0].arguments == '{"at": "😀"}'


def test_a_refusal_is_not_streamed_as_a_piece_of_the_answer() -> None:
    reply = Reply("openai:m")
    assert reply.add(frame("stop", refusal="I can't.")).text == ""
    assert reply.completion(PRICE).text == "I can't."


def test_a_refusal_is_the_text_of_a_filtered_reply() -> None:
    reply = read({"choices": [{"message": {"content": None, "refusal": "I can't."}, "finish_reason": "stop"}]})
    assert (reply.text, reply.finish_reason, reply.is_refusal) == ("I can't.", "content_filter", True)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_read_under_both_of_its_names(field: str) -> None:
    reply = read(frame(**{field: "so"}), frame("stop", content="yes"))
    assert reply.message.content == (ReasoningPart(text="so"), TextPart(text="yes"))


@pytest.mark.parametrize("empty", [None, ""])
@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_an_empty_name_of_reasoning_does_not_hide_the_other(field: str, empty: str | None) -> None:
    reply = read(frame("stop", content="yes", **{"reasoning": empty, "reasoning_content": empty} | {field: "so"}))
    assert reply.message.content == (ReasoningPart(text="so"), TextPart(text="yes"))


THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "2 and 2 "}, {"type": "text", "text": "make 4"}]}
REFERENCE = {"type": "reference", "reference_ids": [1]}
IT_IS = {"type": "text", "text": "It is "}


@pytest.mark.parametrize(
    "frames",
    [
        [
            frame(
                "stop",
                content=[THINKING, IT_IS, REFERENCE, {"type": "text", "text": "4."}],
            )
        ],
        [frame(content=[THINKING]), frame(content=[IT_IS]), frame("stop", content="4.")],
    ],
)
def test_content_in_blocks_is_reasoning_and_text(frames: list[dict[str, Any]]) -> None:
    assert read(*frames).message.content == (ReasoningPart(text="2 and 2 make 4"), TextPart(text="It is 4."))


def test_a_model_that_the_server_does_not_name_is_the_one_asked_for() -> None:
    assert read(frame("stop", content="hi")).model == "openai:m"


def test_missing_usage_is_an_unpriced_call() -> None:
    usage = read(frame("stop", content="hi")).usage
    assert (usage.calls, usage.unpriced_calls) == (1, 1)


def test_details_larger_than_the_whole_are_cut_to_it() -> None:
    counts = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 99},
        "completion_tokens_details": {"reasoning_tokens": 99},
    }
    usage = read(frame("stop", content="hi") | {"usage": counts}).usage
    assert (usage.cached_tokens, usage.reasoning_tokens) == (10, 5)
    assert usage.cost == Decimal(15) / 1_000_000


@pytest.mark.parametrize(
    ("counts", "output"),
    [
        pytest.param({"total_tokens": 135, "completion_tokens_details": {"reasoning_tokens": 94}}, 103, id="xai"),
        pytest.param({"completion_tokens_details": {"reasoning_tokens": 94}}, 103, id="no total"),
        pytest.param({"total_tokens": 135}, 103, id="only in the total"),
        pytest.param({"total_tokens": 41, "completion_tokens_details": {"reasoning_tokens": 7}}, 9, id="openai"),
        pytest.param({"completion_tokens_details": {"reasoning_tokens": 7}}, 9, id="contained, no total"),
        pytest.param({"total_tokens": 1}, 9, id="a total that is too small"),
        pytest.param({"prompt_tokens": None, "total_tokens": 41}, 9, id="a total of unknown parts"),
    ],
)
def test_reasoning_that_the_completion_tokens_leave_out_is_output(counts: dict[str, Any], output: int) -> None:
    counts = {"prompt_tokens": 32, "completion_tokens": 9} | counts
    usage = read(frame("stop", content="hi") | {"usage": counts}).usage
    reasoning = counts.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    assert (usage.output_tokens, usage.reasoning_tokens) == (output, reasoning)


@pytest.mark.parametrize(
    "bad",
    [
        "<html>",
        None,
        {},
        {"choices": None},
        {"choices": "hi"},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": ["hi"]}}]},
        {"choices": [{"delta": {"content": [{"type": "text", "text": 4}]}}]},
        {"choices": [], "usage": {"prompt_tokens": -1}},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": {}}}]}}]},
    ],
)
def test_what_is_no_chat_completion_is_refused(bad: object) -> None:
    with pytest.raises(BadResponseError, match="openai:m: not a chat completion"):
        read(bad)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ([], "it is no JSON object"),
        ({"choices": [], "usage": {"prompt_tokens": -1}}, "its field 'usage.prompt_tokens' is missing or invalid"),
    ],
)
def test_the_error_about_a_reply_does_not_ask_the_user_to_write_it(bad: object, reason: str) -> None:
    with pytest.raises(BadResponseError, match=f"openai:m: not a chat completion: {reason}$"):
        read(bad)


def test_a_refused_reply_quotes_nothing_of_what_came() -> None:
    with pytest.raises(BadResponseError) as caught:
        read({"choices": "sk-echoed-by-a-gateway"})
    assert "sk-echoed" not in str(caught.value)


def test_an_error_in_place_of_choices_is_the_servers_error() -> None:
    with pytest.raises(RateLimitError, match="slow down"):
        read({"error": {"message": "slow down", "code": 429}})


# -------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "body",
    [
        {"message": "too big", "code": "context_length_exceeded"},
        {"message": "This model's maximum context length is 4096 tokens.", "code": 400},
        {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"},
        "prompt is longer than the context window",
    ],
)
@pytest.mark.parametrize("status", [400, 413, None])
def test_a_request_that_is_too_long_is_known_by_code_or_words(body: object, status: int | None) -> None:
    assert type(refusal(body, model="m", status=status)) is ContextLengthError


def test_a_rate_limit_that_speaks_of_context_is_still_a_rate_limit() -> None:
    body = {"message": "too many requests of this context length"}
    assert type(refusal(body, model="m", status=429)) is RateLimitError


@pytest.mark.parametrize(
    ("body", "is_overload"),
    [
        ({"message": "Try again later.", "type": "service_unavailable_error", "code": "server_is_overloaded"}, True),
        ({"message": "That model is currently overloaded.", "type": "server_error", "code": None}, True),
        ({"message": "Slow down.", "code": "slow_down"}, True),
        ({"message": "Loading model", "type": "unavailable_error", "code": 503}, True),
        ({"message": "no healthy upstream"}, False),
        ("upstream connect error: overloaded", False),
    ],
)
@pytest.mark.parametrize("status", [503, None])
def test_an_overload_is_known_by_the_error_of_the_server(body: object, is_overload: bool, status: int | None) -> None:
    error = refusal(body, model="m", status=status)
    assert isinstance(error, OverloadedError) is is_overload
    assert error.retryable


def test_an_exhausted_quota_is_not_worth_a_retry() -> None:
    error = refusal({"message": "pay", "code": "insufficient_quota"}, model="m", status=429)
    assert isinstance(error, RateLimitError)
    assert not error.retryable


def test_a_status_inside_the_error_counts_when_http_gave_none() -> None:
    assert type(refusal({"message": "no", "code": 400}, model="m")) is BadRequestError
    unknown = refusal({"message": "no", "code": "broken"}, model="m")
    assert (type(unknown), unknown.retryable) == (ModelError, True)


def test_an_endless_error_is_cut_short() -> None:
    assert len(str(refusal("x" * 100_000, model="m", status=500))) < 2000


# ------------------------------------------------------------------------------------------ requests


def sent(*messages: Message, **options: Any) -> dict[str, Any]:
    return options_of(Request(messages=messages, **options), DIALECTS["openai"])


def test_an_open_request_sends_messages_alone() -> None:
    assert sent(Message.user("hi")) == {"messages": [{"role": "user", "content": "hi"}]}


def test_a_turn_of_tool_calls_is_sent_back_as_it_came() -> None:
    call = ToolCall(id="a", name="clock", arguments="{not json")
    turn, result = sent(Message.assistant(tool_calls=[call]), Message.tool("a", "noon"))["messages"]
    function = {"name": "clock", "arguments": "{not json"}
    assert turn == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
    }
    assert result == {"role": "tool", "content": "noon", "tool_call_id": "a"}


def test_an_empty_message_has_empty_content() -> None:
    assert sent(Message.tool("a", ""))["messages"] == [{"role": "tool", "content": "", "tool_call_id": "a"}]


def test_an_image_in_the_result_of_a_tool_is_sent_in_a_message_of_the_user() -> None:
    seen = Message(role="tool", tool_call_id="a", content=(TextPart(text="noon"), ImagePart(data="aGk=")))
    result, moved = sent(seen)["messages"]
    assert result["content"] == "noon\n[image: attachment 1 in the user's next message]"
    assert (moved["role"], [part["type"] for part in moved["content"]]) == ("user", ["text", "image_url"])


@pytest.mark.parametrize("text", ["no such city", "error: no such city", "Error: no such city", ""])
def test_the_text_of_a_failed_tool_says_so_once(text: str) -> None:
    (result,) = sent(Message.tool("c1", text, is_error=True))["messages"]
    assert result["content"] == (text if "rror" in text else f"error: {text}")


def test_reasoning_is_not_sent_back() -> None:
    turn = Message(role="assistant", content=(ReasoningPart(text="so"), TextPart(text="yes")))
    assert sent(turn)["messages"] == [{"role": "assistant", "content": "yes"}]


def test_the_detail_of_an_image_is_sent() -> None:
    (fields,) = sent(Message.user("Look", ImagePart(url="https://example.org/a.png", detail="low")))["messages"]
    assert fields["content"][1]["image_url"] == {"url": "https://example.org/a.png", "detail": "low"}


def test_an_image_by_address_is_left_for_the_vendor_to_fetch() -> None:
    message = Message.user("Look", ImagePart(url="https://example.org/a.png"))
    (fields,) = sent(message)["messages"]
    assert fields["content"] == [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]


def test_serial_tool_calls_are_asked_for_only_when_wished() -> None:
    tools = (Tool(name="clock"),)
    assert "parallel_tool_calls" not in sent(Message.user("hi"), tools=tools)
    assert sent(Message.user("hi"), tools=tools, parallel_tool_calls=False)["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in sent(Message.user("hi"), parallel_tool_calls=False)


def test_any_json_is_asked_for_without_a_schema() -> None:
    assert sent(Message.user("hi"), response_format=JsonFormat())["response_format"] == {"type": "json_object"}


NAMED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (NAMED, True),
        (NAMED | {"required": []}, False),
        (NAMED | {"additionalProperties": True}, False),
        (NAMED | {"properties": {"a": {"type": "object", "properties": {}}}}, False),
        (NAMED | {"properties": {"a": {"anyOf": [{"type": "object"}, {"type": "null"}]}}}, False),
        (NAMED | {"properties": {"a": {"type": "array", "items": NAMED}}}, True),
        ({"type": "object"}, False),
    ],
)
def test_decoding_is_held_to_the_schemas_that_openai_can_hold_it_to(schema: dict[str, Any], strict: bool) -> None:
    form = sent(Message.user("hi"), response_format=JsonFormat(name="plan", json_schema=schema))["response_format"]
    assert form == {"type": "json_schema", "json_schema": {"name": "plan", "schema": schema, "strict": strict}}
