"""Tests of replies of Anthropic's Messages API, without a connection."""

from __future__ import annotations

from typing import Any

import pytest

from rl_conductor.errors import BadResponseError
from rl_conductor.models.anthropic.reply import Reply
from rl_conductor.types import Completion, Usage

USAGE = {"input_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 3, "output_tokens": 1}
MESSAGE = {"type": "message", "model": "m", "content": [], "usage": USAGE}
START = {"type": "message_start", "message": MESSAGE}
TEXT = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
WORD = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Paris"}}
END = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}
STOP = {"type": "message_stop"}


def streamed(*events: object) -> Completion:
    reply = Reply("anthropic:m")
    for event in events:
        reply.add(event)
    return reply.completion(None)


def complete(**fields: Any) -> Completion:
    reply = Reply("anthropic:m")
    reply.add_message(MESSAGE | {"stop_reason": "end_turn"} | fields)
    return reply.completion(None)


def test_later_counts_of_a_stream_replace_earlier_ones_and_the_others_stay() -> None:
    usage = streamed(START, TEXT, WORD, END, STOP).usage
    expected = Usage(input_tokens=28, cached_tokens=20, cache_write_tokens=3, output_tokens=9, calls=1)
    assert usage == expected.model_copy(update={"unpriced_calls": 1})


def test_a_stream_with_its_stop_reason_is_complete() -> None:
    assert streamed(START, TEXT, WORD, END).message.text == "Paris"


def test_unknown_events_blocks_and_deltas_are_ignored() -> None:
    news = (
        {"type": "weather", "index": "sunny"},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "hologram", "text": "look"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "here"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "applause"}},
        "not an object",
    )
    assert streamed(START, TEXT, WORD, *news, END, STOP).message.text == "Paris"


def test_text_with_which_a_block_begins_is_streamed() -> None:
    reply = Reply("anthropic:m")
    thinking = {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": "France's?"}}
    begun = START | {"message": MESSAGE | {"content": [{"type": "text", "text": "It is "}]}}
    deltas = [reply.add(event) for event in (begun, thinking, TEXT | {"content_block": {"type": "text", "text": "P"}})]
    assert "".join(delta.text for delta in deltas) == "It is P"
    assert "".join(delta.reasoning for delta in deltas) == "France's?"


def test_a_reply_may_have_no_counts() -> None:
    start, end = START | {"message": MESSAGE | {"usage": None}}, END | {"usage": None}
    assert streamed(start, TEXT, WORD, end, STOP).usage == Usage(calls=1, unpriced_calls=1)
    assert complete(usage=None).usage == Usage(calls=1, unpriced_calls=1)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ((START, WORD), "no content block 0"),
        ((START, TEXT, WORD | {"index": -1}), "no content block -1"),
        ((START, TEXT, WORD | {"delta": "Paris"}), "delta' is missing or invalid"),
        ((END,), "its end comes before its start"),
        ((START, TEXT, WORD, START), "a second message follows the first"),
        (
            ({"type": "message_start", "message": MESSAGE | {"usage": {"input_tokens": -1}}},),
            "usage.input_tokens' is missing or invalid",
        ),
        ((START, TEXT, WORD, STOP), "broke off"),
        ((STOP,), "broke off"),
    ],
)
def test_an_unusable_stream_is_a_bad_response_that_says_why(events: tuple[object, ...], why: str) -> None:
    with pytest.raises(BadResponseError, match=f"^anthropic:m: .*{why}"):
        streamed(*events)


def test_arguments_of_a_call_keep_their_characters() -> None:
    block = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "東京"}}
    (call,) = complete(content=[block], stop_reason="tool_use").message.tool_calls
    assert call.arguments == '{"city": "東京"}'


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"type": "error"}, "type' is missing or invalid"),
        ({"content": "Paris"}, "content' is missing or invalid"),
        ({"content": [{"type": "tool_use", "id": "c1", "input": {}}]}, "names no tool"),
        ({"stop_reason": None}, "broke off"),
    ],
)
def test_an_unusable_message_is_a_bad_response_that_says_why(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(BadResponseError, match=f"^anthropic:m: .*{why}"):
        complete(**fields)
