"""What all adapters share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime
from typing import get_args

import pytest

from rl_conductor.errors import (
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    ConfigError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    OverloadedError,
    RateLimitError,
)
from rl_conductor.models import Capabilities, Model, model, providers
from rl_conductor.models.base import (
    arguments_of,
    checked,
    collect,
    parse_retry_after,
    priced,
    require,
    status_error,
    within,
)
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import (
    FREE,
    Completion,
    Delta,
    FilePart,
    FinishReason,
    Grammar,
    ImagePart,
    JsonFormat,
    Message,
    Price,
    Request,
    Tool,
    ToolCall,
    Usage,
)
from rl_conductor.types.requests import Need

EVERYTHING = Request(
    messages=(Message.user("hi", ImagePart(data="AA=="), FilePart(data="AA==")),), tools=(Tool(name="clock"),)
)


# -------------------------------------------------------------------------------------------- naming


@pytest.mark.parametrize("name", ["openai", "openai:"])
def test_the_name_of_a_provider_alone_is_refused_with_how_to_name_its_models(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^no model '{name}': openai is a provider; .* as 'openai:MODEL'$"):
        model(name)


@pytest.mark.parametrize("name", ["gpt-5", "nobody:gpt-5", "", ":"])
def test_a_name_without_a_known_provider_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=r"'provider:model'.*anthropic, .*vllm-server"):
        model(name)


def test_a_models_own_name_may_hold_colons() -> None:
    assert model("ollama:qwen3:8b").name == "ollama:qwen3:8b"


@pytest.mark.parametrize("provider", ["anthropic", "google", "ollama", "openai", "openrouter", "vllm-server"])
def test_each_service_is_made_by_its_name(provider: str) -> None:
    made = model(f"{provider}:m", api_key="k")
    assert isinstance(made, Model)
    assert made.name == f"{provider}:m"
    assert provider in providers()


# ------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("able", "lacking"),
    [
        (Capabilities(images=True, files=True), "tools"),
        (Capabilities(tools=True, files=True), "images"),
        (Capabilities(tools=True, images=True), "files"),
    ],
)
def test_a_lacking_capability_is_named(able: Capabilities, lacking: str) -> None:
    with pytest.raises(BadRequestError, match=f"can't take {lacking}$"):
        require(ScriptedModel("hi", capabilities=able), EVERYTHING)


@pytest.mark.parametrize(
    ("form", "lacking"), [(JsonFormat(), "a JSON schema"), (Grammar(gbnf='root ::= "a"'), "a grammar")]
)
def test_a_lacking_format_is_named(form: JsonFormat | Grammar, lacking: str) -> None:
    with pytest.raises(BadRequestError, match=f"can't take {lacking}$"):
        require(ScriptedModel("hi", capabilities=Capabilities()), Request(messages=(), response_format=form))


def test_the_needs_of_requests_are_capabilities() -> None:
    assert {*get_args(Need)} <= Capabilities.model_fields.keys()
    assert EVERYTHING.needs == ("tools", "images", "files")


def test_a_plain_request_needs_no_capability() -> None:
    require(ScriptedModel("hi", capabilities=Capabilities()), Request.user("hi"))


# -------------------------------------------------------------------------------------------- replies


def completion(text: str = "", finish: FinishReason = "stop", *calls: ToolCall) -> Completion:
    message = Message.assistant(text, tool_calls=calls)
    return Completion(message=message, usage=Usage(), finish_reason=finish, model="m")


def test_text_or_a_tool_call_is_an_answer() -> None:
    for good in (
        completion("hi"),
        completion("hi", "length"),
        completion("", "tool_calls", ToolCall(id="a", name="b", arguments="")),
    ):
        assert checked(good, Request(messages=())) is good


@pytest.mark.parametrize(
    ("finish", "why", "retryable"),
    [("stop", "empty", True), ("length", "max_tokens", False), ("content_filter", "filter", False)],
)
def test_no_answer_is_a_bad_response_that_says_why(finish: FinishReason, why: str, retryable: bool) -> None:
    with pytest.raises(BadResponseError, match=why) as caught:
        checked(completion(" \n", finish), Request(messages=()))
    assert caught.value.retryable is retryable


def test_a_call_costs_its_price_and_counts_as_one() -> None:
    used = Usage(input_tokens=1_000_000, cached_tokens=500_000, output_tokens=1_000_000)
    price = Price(input=Decimal(2), cached_input=Decimal(1), output=Decimal(8))
    assert priced(used, price) == used.model_copy(update={"calls": 1, "cost": Decimal("9.5")})
    assert priced(used, FREE).cost == 0
    assert priced(used, None) == used.model_copy(update={"calls": 1, "unpriced_calls": 1})


def test_a_call_whose_tokens_were_not_counted_has_no_known_cost_unless_they_cost_nothing() -> None:
    assert priced(Usage(), Price(input=Decimal(2), output=Decimal(8))) == Usage(calls=1, unpriced_calls=1)
    assert priced(Usage(), Price(input=Decimal(0), output=Decimal(0), per_call=Decimal(3))).cost == 3
    assert priced(Usage(), FREE) == Usage(calls=1)
    assert priced(Usage(output_tokens=1), Price(input=Decimal(2), output=Decimal(8))).unpriced_calls == 0


def test_a_vendor_can_report_no_more_tokens_than_any_call_uses() -> None:
    made_up = Usage(input_tokens=2**62, cached_tokens=2**61, cache_write_tokens=1, output_tokens=10**40)
    used = priced(made_up, Price(input=Decimal(2), output=Decimal(8)))
    counts = (used.input_tokens, used.cached_tokens, used.cache_write_tokens, used.output_tokens)
    assert counts == (10**9, 10**9, 1, 10**9)
    assert used.cost < 20_000
    assert priced(made_up, None).output_tokens == 10**9


async def test_collecting_a_broken_stream_is_a_bad_response() -> None:
    async def broken() -> AsyncGenerator[Delta, None]:
        yield Delta(text="hi")

    with pytest.raises(BadResponseError, match="ended before"):
        await collect(broken())


def test_arguments_that_are_no_object_are_kept_as_text() -> None:
    def given(text: str) -> dict[str, object]:
        return arguments_of(ToolCall(id="a", name="b", arguments=text))

    assert given('{"a": 1}') == {"a": 1}
    assert given("") == {}
    assert given("[1]") == {"invalid_json": "[1]"}
    assert given("{oops") == {"invalid_json": "{oops"}
    assert given("[" * 100_000) == {"invalid_json": "[" * 100_000}


# --------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, BadRequestError, False),
        (401, AuthenticationError, False),
        (403, AuthenticationError, False),
        (404, BadRequestError, False),
        (408, ModelTimeoutError, True),
        (413, ContextLengthError, False),
        (429, RateLimitError, True),
        (500, ModelError, True),
        (503, ModelError, True),
        (504, ModelTimeoutError, True),
        (529, OverloadedError, True),
    ],
)
def test_a_status_means_an_error(status: int, kind: type[ModelError], retryable: bool) -> None:
    error = status_error("why", model="m", status=status, retry_after=3)
    assert type(error) is kind
    assert (error.status, error.retryable, str(error)) == (status, retryable, "why")
    assert error.retry_after == 3 or not retryable


# ----------------------------------------------------------------------------------------------- time


class Source:
    """Numbers, `gap` seconds apart; knows when it was closed."""

    def __init__(self, gap: float = 0.0) -> None:
        self.gap = gap
        self.closed = False

    async def numbers(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(5):
                await asyncio.sleep(self.gap)
                yield number
        finally:
            self.closed = True


def test_when_to_try_again_is_a_number_or_a_date() -> None:
    assert parse_retry_after("7") == 7
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0

    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert parse_retry_after(in_an_hour) == pytest.approx(3_600, abs=60)

    in_two_days_of_some_zone = format_datetime(datetime.now() + timedelta(days=2))
    assert parse_retry_after(in_two_days_of_some_zone) == pytest.approx(2 * 86_400, abs=86_400)


@pytest.mark.parametrize(
    "header", [None, "", "soon", "-1", "Wed, 99 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 99999999999 07:28:00 GMT"]
)
def test_what_is_no_time_to_try_again_is_none(header: str | None) -> None:
    assert parse_retry_after(header) is None


@pytest.mark.parametrize("limit", [None, 5.0])
async def test_items_within_the_limit_pass(limit: float | None) -> None:
    assert [item async for item in within(limit, Source().numbers())] == [0, 1, 2, 3, 4]


async def test_the_limit_counts_for_all_items_together() -> None:
    source, seen = Source(gap=0.4), []
    with pytest.raises(TimeoutError):  # noqa: PT012
        async for item in within(1.0, source.numbers()):
            seen.append(item)  # noqa: PERF401
    assert 1 <= len(seen) < 4
    assert source.closed


async def test_a_slow_reader_is_never_cancelled_itself() -> None:
    items = within(0.5, Source().numbers())
    assert await anext(items) == 0
    await asyncio.sleep(0.6)
    with pytest.raises(TimeoutError):
        await anext(items)


async def test_leaving_early_closes_the_source() -> None:
    source = Source()
    items = within(5, source.numbers())
    assert await anext(items) == 0
    await items.aclose()
    assert source.closed
