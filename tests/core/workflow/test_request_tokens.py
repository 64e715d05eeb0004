"""An upper bound is never less than what a call can use."""

from __future__ import annotations

from base64 import b64encode
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor.types import (
    FilePart,
    Grammar,
    ImagePart,
    JsonFormat,
    Message,
    Price,
    ReasoningPart,
    Request,
    Sampling,
    TextPart,
    Tool,
    ToolCall,
)
from rl_conductor.workflow.image_tokens import TOKENS_PER_WHOLE_IMAGE
from rl_conductor.workflow.request_tokens import (
    DEFAULT_OUTPUT_TOKENS,
    MAX_CHARS_PER_TOKEN,
    estimate_input_tokens,
    min_input_tokens,
    raised_max_tokens,
    upper_bound,
)

DEAR = Price(input=Decimal(1), output=Decimal(10))


def read(*messages: Message, **options: Any) -> int:
    return upper_bound(Request(messages=messages, **options), None).input_tokens


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_text_has_more_tokens_than_are_estimated(text: str) -> None:
    assert read(Message.user(text)) >= len(text.encode())  # a token is never less than a byte


def test_every_part_of_a_request_counts() -> None:
    bare = read(Message.user("x"))
    parts = Message(
        role="user",
        content=(TextPart(text="x"), ImagePart(url="https://x"), FilePart(data="A" * 400), ReasoningPart(text="hm")),
    )
    sheet = FilePart(data="A" * 400, media_type="application/vnd.ms-excel")
    call = ToolCall(id="1", name="süß", arguments='{"stadt": "Köln"}')

    assert read(parts) == bare + TOKENS_PER_WHOLE_IMAGE + 100 + 2
    assert read(Message(role="user", content=(TextPart(text="x"), sheet))) == bare + 100
    assert read(Message.assistant("x", tool_calls=[call])) >= bare + len(call.arguments.encode()) + len(
        b"s\xc3\xbc\xc3\x9f"
    )
    assert read(Message.user("x"), tools=(Tool(name="f", description="ü" * 50),)) >= bare + 100
    assert read(Message.user("x"), response_format=JsonFormat(json_schema={"title": "ü" * 50})) >= bare + 100
    assert read(Message.user("x"), response_format=Grammar(gbnf="root ::= x")) == bare  # never part of the prompt
    assert read(Message.user("x"), Message.user("x")) == 2 * bare


def test_the_output_is_bounded_by_what_is_asked_or_the_default() -> None:
    question = (Message.user("x"),)

    assert upper_bound(Request(messages=question), DEAR).output_tokens == DEFAULT_OUTPUT_TOKENS
    asked = upper_bound(Request(messages=question, sampling=Sampling(max_tokens=5)), DEAR)
    assert asked.output_tokens == 5
    assert asked.cost == DEAR.cost(input_tokens=asked.input_tokens, output_tokens=5)
    assert asked.tokens == asked.input_tokens + 5


@pytest.mark.parametrize("cache_write", [None, Decimal(1), Decimal(1000)])
def test_no_call_costs_more_than_its_bound_whatever_the_vendor_caches(cache_write: Decimal | None) -> None:
    price = DEAR.model_copy(update={"cache_write": cache_write})
    most = upper_bound(Request.user("x"), price)
    assert most.cost is not None
    for kept in (0, 1, most.input_tokens):
        counts = {"input_tokens": most.input_tokens, "output_tokens": most.output_tokens, "cache_write_tokens": kept}
        assert price.cost(**counts) <= most.cost


def test_without_a_price_there_is_no_cost() -> None:
    assert upper_bound(Request(messages=()), None).cost is None


def test_a_text_document_is_bounded_by_its_bytes() -> None:
    text = "word " * 1_200
    part = FilePart(media_type="text/plain", data=b64encode(text.encode()).decode())
    bound = upper_bound(Request(messages=(Message(role="user", content=(part,)),)), None).input_tokens

    assert bound >= upper_bound(Request.user(text), None).input_tokens


def test_typical_tokens_are_fewer_than_the_upper_bound() -> None:
    request = Request.user("word " * 100)
    assert 100 <= estimate_input_tokens(request) < upper_bound(request, None).tokens


def test_the_least_number_of_tokens_counts_texts_and_arguments_of_calls() -> None:
    call = ToolCall(id="1", name="look", arguments='{"word": "' + "x" * 79 + '"}')
    texts = [Message.user("word " * 100), Message.assistant("", tool_calls=[call])]
    least = min_input_tokens(Request(messages=tuple(texts)))
    assert least == (500 + len(call.arguments)) // MAX_CHARS_PER_TOKEN
    assert least < estimate_input_tokens(Request(messages=tuple(texts)))


@pytest.mark.parametrize(
    ("max_tokens", "context", "raised"), [(None, None, None), (100, None, 400), (100, 300, 288), (100, 110, None)]
)
def test_a_limit_that_was_used_up_on_reasoning_is_raised_as_far_as_the_context_allows(
    max_tokens: int | None, context: int | None, raised: int | None
) -> None:
    request = Request.user("x" * 40, sampling=Sampling(max_tokens=max_tokens))
    assert min_input_tokens(request) == 6
    assert raised_max_tokens(request, context) == raised
