"""Messages, usage and prices are plain values: equal content is equal, and JSON brings it back."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from rl_conductor.types import (
    FREE,
    Card,
    Completion,
    ContentPart,
    Continuation,
    Delta,
    FilePart,
    Grammar,
    ImagePart,
    JsonFormat,
    Message,
    Price,
    PriceTier,
    ReasoningPart,
    Request,
    ResponseFormat,
    Sampling,
    TextPart,
    Tool,
    ToolCall,
    Usage,
    total,
)
from rl_conductor.types.completions import parse_finish_reason
from rl_conductor.types.messages import arguments_of, labelled_text, last_user_index, notes_to_results
from rl_conductor.types.requests import MIN_TIMEOUT

usages = st.builds(
    Usage,
    input_tokens=st.integers(0, 10**9),
    cached_tokens=st.integers(0, 10**9),
    output_tokens=st.integers(0, 10**9),
    reasoning_tokens=st.integers(0, 10**9),
    calls=st.integers(0, 10**6),
    cost=st.decimals(0, 10**6, places=6),
    unpriced_calls=st.integers(0, 10**6),
)


def test_text_may_be_given_plainly_and_nothing_is_no_part() -> None:
    assert Message(role="user", content="hi") == Message.user("hi")
    assert Message(role="user", content="").content == ()
    assert Message.assistant().content == ()
    assert Message.tool("1", "result").tool_call_id == "1"
    assert Message.system("be brief").role == "system"


def test_the_text_and_the_reasoning_of_a_message_leave_out_everything_else() -> None:
    parts = (ReasoningPart(text="h"), ImagePart(url="https://x"), TextPart(text="b"), ReasoningPart(text="m"))
    message = Message.user("a", *parts)

    assert message.text == "a\nb"
    assert message.reasoning == "hm"
    assert Message.user("a").reasoning == ""


@pytest.mark.parametrize(
    ("role", "text"), [("system", "18\n95 7"), ("user", "18\n95 7"), ("tool", "18\n95 7"), ("assistant", "1895 7")]
)
def test_only_the_texts_of_a_reply_are_pieces_of_one_text(role: Any, text: str) -> None:
    message = Message(role=role, content=(TextPart(text="18"), TextPart(text="95"), TextPart(text=" 7")))
    assert message.text == text


def test_adjacent_texts_can_be_joined_into_one_part() -> None:
    image = ImagePart(url="https://x")
    texts = (TextPart(text="18"), TextPart(text="95"))
    message = Message(role="user", content=(*texts, image, TextPart(text="")))
    assert message.with_joined_texts() == Message.user("18\n95", image)


@pytest.mark.parametrize(
    "message",
    [
        Message.user("ü\n\x00 🙂", ImagePart(data="QQ=="), FilePart(data="QQ==")),
        Message.assistant("x", tool_calls=[ToolCall(id="1", name="f", arguments="{not json")]).model_copy(
            update={"continuation": Continuation(worker="w", prompt="p")}
        ),
        Message(role="assistant", content=(ReasoningPart(text="hm", signature="s"),)),
        Message.tool("1", ""),
    ],
)
def test_messages_travel_as_json(message: Message) -> None:
    assert Message.model_validate_json(message.model_dump_json()) == message


@pytest.mark.parametrize(
    ("text", "marked"),
    [("no such city", "error: no such city"), ("Error: no such city", "Error: no such city"), ("", "error: ")],
)
def test_the_error_of_a_tool_can_be_written_into_its_text(text: str, marked: str) -> None:
    failed = Message.tool("c1", text, is_error=True)
    assert (failed.with_error_as_text().text, failed.with_error_as_text().is_error) == (marked, False)
    assert Message.model_validate_json(failed.model_dump_json()) == failed
    succeeded = Message.tool("c1", text)
    assert succeeded.with_error_as_text() is succeeded


@pytest.mark.parametrize(
    ("timeout", "left", "expected"), [(None, 5.0, 5.0), (3.0, 5.0, 3.0), (9.0, 5.0, 5.0), (9.0, -1.0, MIN_TIMEOUT)]
)
def test_the_shorter_of_two_timeouts_holds_and_is_above_0(timeout: float | None, left: float, expected: float) -> None:
    request = Request.user("?").model_copy(update={"timeout": timeout})
    assert request.within_seconds(left).timeout == expected


def test_a_request_travels_as_json() -> None:
    request = Request(
        messages=(Message.user("x"),),
        tools=(Tool(name="f"),),
        tool_choice="f",
        parallel_tool_calls=False,
        response_format=JsonFormat(json_schema={"type": "object"}),
        sampling=Sampling(temperature=0.5, stop=("a",), effort="low"),
        timeout=3.0,
    )

    assert Request.model_validate_json(request.model_dump_json()) == request
    formats = TypeAdapter[ResponseFormat](ResponseFormat)
    assert formats.validate_python({"type": "grammar", "gbnf": "root ::= x"}) == Grammar(gbnf="root ::= x")
    parts = TypeAdapter[ContentPart](ContentPart)
    assert parts.validate_python({"type": "text", "text": "x"}) == TextPart(text="x")


@pytest.mark.parametrize(
    "wrong", [{"role": "robot"}, {"role": "user", "content": [{"type": "video"}]}, {"role": "user", "extra": 1}]
)
def test_what_is_no_message_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Message(**wrong)


def test_values_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Message.user("x").role = "system"  # type: ignore[misc]


@pytest.mark.parametrize("text", ["a\ud83d", "\udc00", "ü\ud800\udc00"])
def test_half_a_surrogate_pair_becomes_a_question_mark(text: str) -> None:
    for value in (
        TextPart(text=text),
        ReasoningPart(text=text),
        ReasoningPart(text="", signature=text),
        ToolCall(id="1", name=text, arguments=text),
        ToolCall(id=text, name="", arguments=""),
        Delta(text=text, reasoning=text),
        Completion(message=Message.assistant("x"), usage=Usage(), model=text),
    ):
        assert "?" in value.model_dump_json()
    assert TextPart(text="🙂").text == "🙂"


# ----------------------------------------------------------------------------------- usage, prices


@given(a=usages, b=usages, c=usages)
def test_usage_adds_up(a: Usage, b: Usage, c: Usage) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + Usage() == a
    assert total([a, b, c]) == a + b + c
    assert (a + b).total_tokens == a.total_tokens + b.total_tokens


def test_the_total_of_nothing_is_zero() -> None:
    assert total([]) == Usage()


@pytest.mark.parametrize(
    ("cost", "told"),
    [("0", "0"), ("0E-10", "0"), ("3E-7", "0.0000003"), ("1.50", "1.50"), ("2E+1", "20"), ("1E-25", f"0.{'0' * 24}1")],
)
def test_json_tells_money_with_every_digit(cost: str, told: str) -> None:
    usage = Usage(cost=Decimal(cost))
    assert usage.model_dump(mode="json")["cost"] == told
    assert Usage.model_validate_json(usage.model_dump_json()) == usage
    assert usage.model_dump()["cost"] is usage.cost


@pytest.mark.parametrize(
    "field",
    [
        *("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens"),
        *("calls", "cost", "unpriced_calls"),
    ],
)
def test_nobody_uses_less_than_nothing(field: str) -> None:
    with pytest.raises(ValidationError):
        Usage(**{field: -1})


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_limit_of_output_tokens_allows_at_least_one(tokens: int) -> None:
    with pytest.raises(ValidationError, match="max_tokens"):
        Sampling(max_tokens=tokens)


def test_a_price_is_per_million_tokens() -> None:
    price = Price(input=Decimal(2), output=Decimal(10), cached_input=Decimal("0.5"), per_call=Decimal("0.01"))

    cost = price.cost(input_tokens=1_000_000, output_tokens=100_000, cached_tokens=400_000)

    assert cost == Decimal("0.01") + Decimal("1.2") + Decimal("0.2") + Decimal("1.0")


def test_a_price_is_free_only_without_any_rate() -> None:
    assert FREE.is_free
    assert not any(
        Price.model_validate({"input": 0, "output": 0, rate: 1}).is_free for rate in ("input", "output", "per_call")
    )


def test_cached_tokens_without_a_rate_of_their_own_cost_the_full_one() -> None:
    assert Price(input=Decimal(2), output=Decimal(0)).cost(
        input_tokens=500_000, output_tokens=0, cached_tokens=500_000
    ) == Decimal(1)


def test_what_is_cached_for_later_has_a_rate_of_its_own() -> None:
    price = Price(input=Decimal(2), output=Decimal(0), cached_input=Decimal("0.2"), cache_write=Decimal("2.5"))
    counts = {"input_tokens": 1_000_000, "output_tokens": 0, "cached_tokens": 300_000, "cache_write_tokens": 200_000}
    assert price.cost(**counts) == Decimal("1.0") + Decimal("0.06") + Decimal("0.5")


def test_long_inputs_cost_what_their_tier_says() -> None:
    tiers = (
        PriceTier(above=10, input=Decimal(2), output=Decimal(2)),
        PriceTier(above=20, input=Decimal(3), output=Decimal(3), cached_input=Decimal(0)),
    )
    price = Price(input=Decimal(1), output=Decimal(1), tiers=tiers)

    assert [price.cost(input_tokens=n, output_tokens=0) * 1_000_000 for n in (10, 11, 20, 21)] == [10, 22, 40, 63]
    assert price.cost(input_tokens=21, output_tokens=0, cached_tokens=21) == 0


def test_more_cached_tokens_than_tokens_earn_no_money() -> None:
    price = Price(input=Decimal(10), output=Decimal(0), cached_input=Decimal(1))

    assert price.cost(input_tokens=1, output_tokens=0, cached_tokens=1_000_000) == Decimal(1)


def test_a_free_model_costs_nothing() -> None:
    assert FREE.cost(input_tokens=10**9, output_tokens=10**9) == 0


def test_the_mean_accuracy_is_over_what_was_measured() -> None:
    assert Card(name="a", accuracy={"math": 0.5, "code": 1.0}).mean_accuracy == 0.75
    assert Card(name="a").mean_accuracy == 0.0


def test_the_text_of_a_completion_is_its_messages() -> None:
    assert Completion(message=Message.assistant("x"), usage=Usage(), model="m").text == "x"


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("length", "length"),
        ("MAX_TOKENS", "length"),
        ("max_output_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "length"),
        ("SAFETY", "content_filter"),
        ("SPII", "content_filter"),
        ("guardrail_intervened", "content_filter"),
        ("end_turn", "stop"),
        (None, "stop"),
    ],
)
def test_vendors_reasons_for_the_end_of_a_reply_are_mapped(reason: str | None, finish: str) -> None:
    assert parse_finish_reason(reason, tool_calls=False) == finish
    assert parse_finish_reason(reason, tool_calls=True) == ("tool_calls" if finish == "stop" else finish)


def test_messages_after_tool_results_are_notes_and_no_new_question() -> None:
    asked, calls, result = Message.user("Read it."), Message.assistant("I look."), Message.tool("1", "done")
    reminder, instruction = Message.user("Two warnings."), Message.system("Be brief.")
    conversation = (asked, calls, result, reminder, instruction)
    assert notes_to_results(conversation) == {3, 4}
    assert last_user_index(conversation) == 0
    answered = (*conversation, Message.assistant("Read."), Message.user("And now?"))
    assert last_user_index(answered) == 6
    assert last_user_index((result, reminder)) == 1


@given(st.lists(st.sampled_from(["system", "user", "assistant", "tool"])))
def test_the_last_user_message_is_the_last_one_that_is_no_note(roles: list[Any]) -> None:
    conversation = [Message(role=role, content="x", tool_call_id="1" if role == "tool" else None) for role in roles]
    users = [index for index, role in enumerate(roles) if role == "user"]
    questions = [index for index in users if index not in notes_to_results(conversation)]
    expected = questions or users
    assert last_user_index(conversation) == (expected[-1] if expected else None)


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "object", "properties": {}, "required": [], "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {}}, "required": [], "additionalProperties": False}, False),
        ({"type": "object", "properties": {}}, False),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, False),
        ({"type": "string"}, True),
        ({"type": "object", "properties": {}, "required": 5, "additionalProperties": False}, False),  # malformed
        ({"type": "object", "properties": {}, "required": [["a"]], "additionalProperties": False}, False),
    ],
)
def test_a_schema_is_strict_unless_properties_are_optional_or_open(schema: dict[str, Any], *, strict: bool) -> None:
    assert JsonFormat(json_schema=schema).is_strict is strict
    assert JsonFormat(json_schema=schema, strict=not strict).is_strict is not strict


def test_arguments_that_are_no_object_are_kept_as_text() -> None:
    def given(text: str) -> dict[str, object]:
        return arguments_of(ToolCall(id="a", name="b", arguments=text))

    assert given('{"a": 1}') == {"a": 1}
    assert given("") == {}
    assert given("[1]") == {"invalid_json": "[1]"}
    assert given("{oops") == {"invalid_json": "{oops"}
    assert given("[" * 100_000) == {"invalid_json": "[" * 100_000}
    assert given('{"a": NaN}') == {"invalid_json": '{"a": NaN}'}
    assert given(r'{"a": "\ud800"}') == {"invalid_json": r'{"a": "\ud800"}'}


def test_a_document_in_a_message_has_its_title_and_details_and_an_end() -> None:
    part = labelled_text("document", "Bikes: 30 days.", "Returns", Source="wiki", Context=None)
    assert part.text == "[Document: Returns]\n[Source: wiki]\nBikes: 30 days.\n[End of the document]\n"
    assert labelled_text("search result", "Yes.", None).text == "[Search result]\nYes.\n[End of the search result]\n"
