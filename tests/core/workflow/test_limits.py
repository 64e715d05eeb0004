"""Limits are sane, and an upper bound is never less than what a call can use."""

from __future__ import annotations

from base64 import b64encode
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

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
from rl_conductor.workflow.limits import (
    DEFAULT_OUTPUT_TOKENS,
    MAX_CHARS_PER_TOKEN,
    Limits,
    estimate_input_tokens,
    min_input_tokens,
    raised_max_tokens,
    upper_bound,
)

DEAR = Price(input=Decimal(1), output=Decimal(10))


def read(*messages: Message, **options: Any) -> int:
    return upper_bound(Request(messages=messages, **options), None).input_tokens


def test_a_limit_in_dollars_is_told_with_every_digit() -> None:
    limits = Limits(usd=Decimal("3E-7"))
    assert limits.model_dump(mode="json")["usd"] == "0.0000003"
    assert Limits.model_validate_json(limits.model_dump_json()) == limits


@pytest.mark.parametrize(
    "wrong",
    [
        {"usd": -1},
        {"usd": "1e-999999999"},
        {"usd": "1e999999999"},
        {"tokens": -1},
        {"tokens": 10**19},
        {"calls": 0},
        {"seconds": 0},
        {"seconds": float("inf")},
        {"seconds": float("nan")},
        {"rounds": 0},
        {"steps": 0},
        {"concurrency": 0},
        {"depth": 0},
        {"hedges": -1},
        {"reply_chars": 0},
        {"dollars": 1},
    ],
)
def test_limits_that_leave_nothing_or_do_not_exist_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Limits(**wrong)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"calls": True}, "calls\n  write a whole number of 1 or more ["),
        ({"tokens": 10**16}, "tokens\n  write a whole number of 0 or more, and at most 1,000,000,000,000,000 ["),
        ({"seconds": True}, "seconds\n  write a number of seconds above 0 ["),
        ({"steps": "many"}, "steps\n  write a whole number of 1 or more ["),
        ({"hedges": None}, "hedges\n  write a whole number of 0 or more ["),
        ({"usd": "a lot"}, "usd\n  write an amount of US dollars of 0 or more, with at most 60 digits ["),
        ({"cals": 3}, "cals\n  there is no such setting; did you mean 'calls'? ["),
    ],
)
def test_errors_of_limits_say_what_to_write(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Limits(**limits)
    assert message in str(caught.value)
    assert "pydantic.dev" not in str(caught.value)


def test_errors_of_limits_inside_of_another_value_keep_their_path() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[str, Limits]).validate_python({"mini": {"calls": 0}})
    assert [error["loc"] for error in caught.value.errors()] == [("mini", "calls")]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_text_has_more_tokens_than_are_estimated(text: str) -> None:
    assert read(Message.user(text)) >= len(text.encode())  # a token is never less than a byte


def test_every_part_of_a_request_counts() -> None:
    bare = read(Message.user("x"))
    parts = Message(
        role="user",
        content=(TextPart(text="x"), ImagePart(url="https://x"), FilePart(data="A" * 400), ReasoningPart(text="hm")),
    )
    call = ToolCall(id="1", name="süß", arguments='{"stadt": "Köln"}')

    assert read(parts) == bare + TOKENS_PER_WHOLE_IMAGE + 100 + 2
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


LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "usd": st.none() | st.decimals(0, 10, places=2),
        "tokens": st.none() | st.integers(0, 9),
        "calls": st.none() | st.integers(1, 9),
        "seconds": st.none() | st.floats(0.1, 9),
        "rounds": st.integers(1, 9),
        "steps": st.integers(1, 9),
    },
).map(Limits.model_validate)


@given(own=LIMITS, others=st.lists(st.none() | LIMITS, max_size=3))
def test_each_limit_is_the_lowest_that_is_set(own: Limits, others: list[Limits | None]) -> None:
    lowered = own.lowered(*others)
    for name in Limits.model_fields:
        values = [getattr(own, name)]
        values += [getattr(each, name) for each in others if each and name in each.model_fields_set]
        assert getattr(lowered, name) == min((value for value in values if value is not None), default=None)


def test_limits_that_are_not_set_lower_nothing() -> None:
    own = Limits(seconds=9, rounds=3, steps=8)

    assert own.lowered(None, Limits()) is own
    assert own.lowered(Limits(seconds=None, usd=None)) == own
    assert own.lowered(Limits(seconds=5), None, Limits(seconds=7, steps=2)) == Limits(seconds=5, rounds=3, steps=2)


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
