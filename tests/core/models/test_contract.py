"""One suite for every `Model`: what a caller may rely on, whoever answers."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import pickle
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from decimal import Decimal

import pytest

from core.runs import SOON
from rl_conductor._internal.sync import run_sync
from rl_conductor.calls.context import RunContext
from rl_conductor.calls.model_call import ModelCall
from rl_conductor.conductor import Conductor
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
    RunError,
)
from rl_conductor.models import Capabilities, Model, model
from rl_conductor.models.base import collect
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.trace.events import Event
from rl_conductor.trace.trace import Call
from rl_conductor.types import (
    Completion,
    ContentPart,
    FilePart,
    Grammar,
    ImagePart,
    JsonFormat,
    Message,
    Price,
    ReasoningPart,
    Request,
    Sampling,
    Tool,
    ToolCall,
    Usage,
)
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy

from .subject import Subject
from .wire.base import CALLS, COUNTS, SECRET

Ask = Callable[[Model, Request], Awaitable[Completion]]

HELLO = Request.user("hello there")
TOOLS = (
    Tool(name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}}),
    Tool(name="clock", parameters={"type": "object", "properties": {"zone": {"type": "string"}}}),
)
PRICE = Price(input=Decimal(2), cached_input=Decimal(1), output=Decimal(10), per_call=Decimal("0.01"))
SAMPLING = Sampling(temperature=0.5, top_p=0.9, max_tokens=5000, seed=7, stop=("END",), effort="low")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


async def whole(model: Model, request: Request) -> Completion:
    return await model.complete(request)


async def streamed(model: Model, request: Request) -> Completion:
    return await collect(model.stream(request))


both_ways = pytest.mark.parametrize("ask", [whole, streamed])


# ------------------------------------------------------------------------------------------ answers


@pytest.mark.needs("echo")
async def test_an_adapter_is_a_model_with_a_provider_in_its_name(subject: Subject) -> None:
    model = subject.model("echo")
    assert isinstance(model, Model)
    assert model.name.startswith(f"{subject.adapter.name}:")


@both_ways
@pytest.mark.needs("echo")
async def test_a_reply_has_text_usage_a_reason_to_end_and_the_model_that_answered(subject: Subject, ask: Ask) -> None:
    reply = await ask(subject.model("echo"), HELLO)
    assert reply.text == "You said: hello there"
    assert reply.finish_reason == "stop"
    assert reply.usage.calls == 1
    assert reply.usage.input_tokens > 0
    assert reply.usage.output_tokens > 0
    assert "echo" in reply.model or reply.model == subject.models[0].name


@both_ways
@pytest.mark.needs("stop-sequence")
async def test_a_reply_names_the_stop_sequence_that_ended_it(subject: Subject, ask: Ask) -> None:
    reply = await ask(subject.model("stop-sequence"), HELLO)
    assert (reply.text, reply.finish_reason, reply.stop_sequence) == ("up to here", "stop", "END")


@both_ways
@pytest.mark.needs("echo", "wire")
async def test_the_answering_model_is_the_one_that_the_service_names(subject: Subject, ask: Ask) -> None:
    assert (await ask(subject.model("echo"), HELLO)).model == "echo-2026"


@pytest.mark.needs("echo")
async def test_streamed_text_is_the_completions_text_and_comes_in_pieces(subject: Subject) -> None:
    deltas = [delta async for delta in subject.model("echo").stream(HELLO)]
    completion = deltas[-1].completion
    assert completion is not None
    assert "".join(delta.text for delta in deltas) == completion.text == "You said: hello there"
    assert sum(bool(delta.text) for delta in deltas) > 1
    assert all(delta.completion is None for delta in deltas[:-1])


@both_ways
@pytest.mark.needs("echo", "wire")
async def test_the_whole_conversation_is_sent(subject: Subject, ask: Ask) -> None:
    messages = (Message.system("Be brief."), Message.user("one"), Message.assistant("two"), Message.user("three"))
    reply = await ask(subject.model("echo"), Request(messages=messages))
    seen = subject.wire.read(subject.sent)
    assert reply.text == "You said: three"
    assert seen.system == "Be brief."
    assert all(text in json.dumps(subject.sent.body) for text in ("one", "two"))


@both_ways
@pytest.mark.needs("usage")
async def test_usage_counts_cached_and_reasoning_tokens_and_the_price_makes_the_cost(
    subject: Subject, ask: Ask
) -> None:
    usage = (await ask(subject.model("usage", price=PRICE), HELLO)).usage
    assert usage.input_tokens == COUNTS.input
    assert usage.cached_tokens == COUNTS.cached
    assert usage.cached_tokens + usage.cache_write_tokens <= usage.input_tokens
    assert usage.output_tokens == COUNTS.output
    assert usage.reasoning_tokens == COUNTS.reasoning
    assert usage.cost == Decimal("0.01") + (600 * 2 + 400 * 1 + 300 * 10) / Decimal(1_000_000)
    assert usage.unpriced_calls == 0


@both_ways
@pytest.mark.each("echo", "tools", "parallel-tools")
async def test_tokens_cost_what_the_price_says(subject: Subject, ask: Ask, scenario: str) -> None:
    price = Price(input=Decimal(3), output=Decimal(5))
    usage = (await ask(subject.model(scenario, price=price), HELLO.model_copy(update={"tools": TOOLS}))).usage
    assert usage.input_tokens
    assert usage.cost == (3 * usage.input_tokens + 5 * usage.output_tokens) / Decimal(1_000_000)
    assert (usage.calls, usage.unpriced_calls) == (1, 0)


@both_ways
@pytest.mark.needs("uncounted")
async def test_a_call_whose_tokens_nobody_counted_is_not_free(subject: Subject, ask: Ask) -> None:
    usage = (await ask(subject.model("uncounted", price=PRICE), HELLO)).usage
    assert usage.unpriced_calls == 1
    assert usage.cost == 0


@both_ways
@pytest.mark.needs("usage")
async def test_a_call_without_a_known_price_says_so(subject: Subject, ask: Ask) -> None:
    usage = (await ask(subject.model("usage"), HELLO)).usage
    assert usage.unpriced_calls == 1
    assert usage.cost == 0


@both_ways
@pytest.mark.needs("reasoning")
async def test_reasoning_is_kept_apart_from_the_answer(subject: Subject, ask: Ask) -> None:
    reply = await ask(subject.model("reasoning"), HELLO)
    assert reply.text == "42"
    assert [part.text for part in reply.message.content if isinstance(part, ReasoningPart)] == ["six times seven"]


@pytest.mark.needs("reasoning")
async def test_reasoning_is_streamed_apart_from_the_answer(subject: Subject) -> None:
    deltas = [delta async for delta in subject.model("reasoning").stream(HELLO)]
    assert "".join(delta.reasoning for delta in deltas) == "six times seven"
    assert "".join(delta.text for delta in deltas) == "42"


@both_ways
@pytest.mark.needs("length")
async def test_a_reply_cut_at_the_token_limit_says_so(subject: Subject, ask: Ask) -> None:
    reply = await ask(subject.model("length"), HELLO)
    assert reply.finish_reason == "length"
    assert reply.text == "Once upon a"


# -------------------------------------------------------------------------------------------- tools


@both_ways
@pytest.mark.needs("tools")
async def test_a_tool_call_arrives_whole(subject: Subject, ask: Ask) -> None:
    reply = await ask(subject.model("tools"), HELLO.model_copy(update={"tools": TOOLS}))
    (call,) = reply.message.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Kyiv"})
    assert call.id
    assert reply.finish_reason == "tool_calls"


@both_ways
@pytest.mark.needs("parallel-tools")
async def test_parallel_tool_calls_stay_apart(subject: Subject, ask: Ask) -> None:
    reply = await ask(subject.model("parallel-tools"), HELLO.model_copy(update={"tools": TOOLS}))
    calls = [(call.name, json.loads(call.arguments)) for call in reply.message.tool_calls]
    assert calls == [(name, json.loads(arguments)) for _, name, arguments in CALLS]
    assert len({call.id for call in reply.message.tool_calls}) == len(CALLS)


@both_ways
@pytest.mark.needs("parallel-tools", "tool-result")
async def test_the_next_turn_takes_the_results(subject: Subject, ask: Ask) -> None:
    asked = HELLO.model_copy(update={"tools": TOOLS})
    turn = (await ask(subject.model("parallel-tools"), asked)).message
    first, second = turn.tool_calls
    results = (Message.tool(first.id, "9 degrees"), Message.tool(second.id, "noon"))
    request = asked.model_copy(update={"messages": (*asked.messages, turn, *results)})
    reply = await ask(subject.model("tool-result"), request)
    assert reply.text == "The tool said: noon"


@both_ways
@pytest.mark.needs("calls-without-ids")
async def test_calls_without_ids_get_some_that_no_earlier_call_has(subject: Subject, ask: Ask) -> None:
    model, ids = subject.model("calls-without-ids"), list[str]()
    request = HELLO.model_copy(update={"tools": TOOLS})
    for _ in range(2):
        turn = (await ask(model, request)).message
        ids += (call.id for call in turn.tool_calls)
        results = (Message.tool(call.id, "done") for call in turn.tool_calls)
        request = request.model_copy(update={"messages": (*request.messages, turn, *results)})
    assert ids == ["call_0", "call_1", "call_2", "call_3"]


@both_ways
@pytest.mark.needs("empty")
async def test_an_empty_reply_is_an_answer_after_the_results_of_tools(subject: Subject, ask: Ask) -> None:
    turn = Message.assistant(tool_calls=[ToolCall(id="call_1", name="weather", arguments="{}")])
    request = HELLO.model_copy(update={"messages": (*HELLO.messages, turn, Message.tool("call_1", "done"))})
    reply = await ask(subject.model("empty"), request)
    assert (reply.text, reply.finish_reason) == ("", "stop")


@pytest.mark.parametrize("choice", ["auto", "none", "required", "clock"])
@pytest.mark.needs("echo", "wire")
async def test_tools_and_the_choice_among_them_are_sent(subject: Subject, choice: str) -> None:
    await subject.model("echo").complete(HELLO.model_copy(update={"tools": TOOLS, "tool_choice": choice}))
    seen = subject.wire.read(subject.sent)
    assert seen.tools == ("weather", "clock")
    assert seen.tool_choice == choice or (choice == "auto" and not seen.tool_choice)


# ------------------------------------------------------------------------------------ special wishes


@both_ways
@pytest.mark.needs("json")
async def test_a_json_schema_reaches_the_service(subject: Subject, ask: Ask) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "integer"}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    request = HELLO.model_copy(update={"response_format": JsonFormat(json_schema=schema)})
    assert json.loads((await ask(subject.model("json"), request)).text) == {"answer": 42}


@both_ways
@pytest.mark.needs("image")
async def test_an_image_arrives(subject: Subject, ask: Ask) -> None:
    message = Message.user("What is it?", ImagePart(media_type="image/png", data=PIXEL))
    assert (await ask(subject.model("image"), Request(messages=(message,)))).text == "I see image/png"


@both_ways
@pytest.mark.needs("file")
async def test_a_document_arrives(subject: Subject, ask: Ask) -> None:
    message = Message.user("Read it.", FilePart(media_type="application/pdf", data="JVBERi0xLjQK"))
    assert (await ask(subject.model("file"), Request(messages=(message,)))).text == "I read application/pdf"


@both_ways
@pytest.mark.needs("echo", "wire")
async def test_sampling_is_sent_where_the_vendor_has_it(subject: Subject, ask: Ask) -> None:
    has = {name: value for name, value in SAMPLING if name in subject.adapter.sampling}
    await ask(subject.model("echo"), HELLO.model_copy(update={"sampling": Sampling(**has)}))
    assert subject.wire.read(subject.sent).sampling == has


@both_ways
@pytest.mark.needs("echo", "wire")
async def test_sampling_that_the_vendor_lacks_is_refused_before_the_call(subject: Subject, ask: Ask) -> None:
    lacks = {name: value for name, value in SAMPLING if name not in subject.adapter.sampling}
    for name, value in lacks.items():
        with pytest.raises(BadRequestError, match=name):
            await ask(subject.model("echo"), HELLO.model_copy(update={"sampling": Sampling(**{name: value})}))
    assert not subject.wire.requests


@pytest.mark.needs("echo", "wire")
async def test_what_the_caller_leaves_open_is_left_to_the_vendor(subject: Subject) -> None:
    await subject.model("echo").complete(HELLO)
    assert set(subject.wire.read(subject.sent).sampling) <= {"max_tokens"}  # which some vendors insist on


@both_ways
@pytest.mark.parametrize("part", [ImagePart(data=PIXEL), FilePart(data="JVBERi0xLjQK")])
@pytest.mark.needs("echo")
async def test_a_part_that_the_model_cannot_take_is_refused_before_the_call(
    subject: Subject, ask: Ask, part: ContentPart
) -> None:
    model = subject.model("echo", capabilities=Capabilities())
    with pytest.raises(BadRequestError, match="can't take"):
        await ask(model, Request(messages=(Message.user("Look", part),)))
    assert subject.service is None or not subject.service.requests


@both_ways
@pytest.mark.parametrize(
    "wish", [{"tools": TOOLS}, {"response_format": JsonFormat()}, {"response_format": Grammar(gbnf='root ::= "a"')}]
)
@pytest.mark.needs("echo")
async def test_a_wish_that_the_model_cannot_grant_is_refused_before_the_call(
    subject: Subject, ask: Ask, wish: dict[str, object]
) -> None:
    with pytest.raises(BadRequestError, match="can't take"):
        await ask(subject.model("echo", capabilities=Capabilities()), HELLO.model_copy(update=wish))
    assert subject.service is None or not subject.service.requests


# ------------------------------------------------------------------------------------------- faults

ERRORS: dict[str, tuple[type[ModelError], set[int], bool]] = {
    "unauthorized": (AuthenticationError, {401}, False),
    "masked-key": (AuthenticationError, {401}, False),
    "torn-key": (AuthenticationError, {401}, False),
    "forbidden": (AuthenticationError, {403}, False),
    "missing": (BadRequestError, {404}, False),
    "rate-limit": (RateLimitError, {429}, True),
    "overloaded": (OverloadedError, {503, 529}, True),
    "server-error": (ModelError, {500}, True),
    "context": (ContextLengthError, {400, 413}, False),
    "bad-request": (BadRequestError, {400}, False),
}
"""Class, HTTP statuses, and whether trying again may help."""


@both_ways
@pytest.mark.each(*ERRORS)
async def test_a_vendors_error_becomes_ours_and_is_not_retried(subject: Subject, ask: Ask, scenario: str) -> None:
    kind, statuses, retryable = ERRORS[scenario]
    with pytest.raises(ModelError) as caught:
        await ask(subject.model(scenario), HELLO)
    error = caught.value
    assert type(error) is kind
    assert error.status in statuses
    assert error.retryable is retryable
    assert error.retry_after == (7 if scenario == "rate-limit" else None)
    assert subject.service is None or len(subject.service.requests) == 1


@both_ways
@pytest.mark.each("malformed", "html", "wrong-shape", "truncated", "empty")
async def test_a_reply_that_breaks_the_protocol_is_a_bad_response(subject: Subject, ask: Ask, scenario: str) -> None:
    with pytest.raises(BadResponseError) as caught:
        await ask(subject.model(scenario), HELLO)
    assert caught.value.retryable


@both_ways
@pytest.mark.needs("html", "wire")
async def test_a_web_page_in_place_of_a_reply_is_named_with_its_address(subject: Subject, ask: Ask) -> None:
    with pytest.raises(BadResponseError, match=f"a web page came instead of a reply from {subject.wire.url}"):
        await ask(subject.model("html"), HELLO)


@both_ways
@pytest.mark.needs("malformed", "wire")
async def test_a_reply_that_is_not_json_is_named_with_its_address(subject: Subject, ask: Ask) -> None:
    with pytest.raises(BadResponseError, match=f"the reply from {subject.wire.url}.* is not JSON: "):
        await ask(subject.model("malformed"), HELLO)


@pytest.mark.needs("unfinished")
async def test_a_stream_that_ends_before_the_reply_does_is_a_bad_response(subject: Subject) -> None:
    stream = subject.model("unfinished").stream(HELLO)
    await anext(stream)
    with pytest.raises(BadResponseError) as caught:
        await collect(stream)
    assert caught.value.retryable


@pytest.mark.needs("held")
async def test_a_complete_reply_does_not_wait_for_the_end_of_its_connection(subject: Subject) -> None:
    reply = await collect(subject.model("held").stream(HELLO.model_copy(update={"timeout": SOON})))
    assert reply.text == "You said: hello there"


@pytest.mark.needs("byte-order-mark")
async def test_a_byte_order_mark_costs_no_event(subject: Subject) -> None:
    reply = await collect(subject.model("byte-order-mark").stream(HELLO))
    assert reply.text == "You said: hello there"


@both_ways
@pytest.mark.needs("breaks")
async def test_an_error_in_mid_stream_is_ours_and_retryable(subject: Subject, ask: Ask) -> None:
    with pytest.raises(ModelError) as caught:
        await ask(subject.model("breaks"), HELLO)
    assert caught.value.retryable


@pytest.mark.each("overloaded", "gateway")
@pytest.mark.needs("wire")
async def test_only_an_overload_that_the_vendor_itself_reports_costs_nothing(subject: Subject, scenario: str) -> None:
    run, calls = RunContext(limits=Limits(calls=9), retries=0, keep_prompts=False), list[Call]()
    model = subject.model(scenario, price=PRICE)
    with pytest.raises(ModelError) as caught:
        await ModelCall(run=run, model=model, request=HELLO, calls=calls).complete()
    assert caught.value.status in (503, 529)
    assert caught.value.retryable
    is_billed = scenario == "gateway"
    assert calls[0].usage == Usage(calls=1, unpriced_calls=int(is_billed))
    assert (run.budget.spent.usd > 0) is is_billed


@both_ways
@pytest.mark.needs("wire")
async def test_of_a_gateways_web_page_an_error_quotes_the_title(subject: Subject, ask: Ask) -> None:
    with pytest.raises(ModelError, match=r"HTTP status 503, with a web page in place of a reply: 503 Try later$"):
        await ask(subject.model("gateway"), HELLO)


@pytest.mark.needs("sheds")
async def test_an_overload_after_pieces_of_tool_calls_may_have_been_billed(subject: Subject) -> None:
    run, calls = RunContext(limits=Limits(calls=9), retries=0, keep_prompts=False), list[Call]()
    request = HELLO.model_copy(update={"tools": TOOLS})
    model = subject.model("sheds", price=PRICE)
    with pytest.raises(ModelError):
        await ModelCall(run=run, model=model, request=request, calls=calls, on_text=lambda _: None).complete()
    assert calls[0].usage == Usage(calls=1, unpriced_calls=1)
    assert run.budget.spent.usd > 0


@both_ways
@pytest.mark.each("length-empty", "filter")
async def test_a_withheld_answer_is_a_bad_response_that_no_retry_mends(
    subject: Subject, ask: Ask, scenario: str
) -> None:
    with pytest.raises(BadResponseError) as caught:
        await ask(subject.model(scenario), HELLO)
    assert not caught.value.retryable


@pytest.mark.needs("echo", "wire")
async def test_no_log_shows_the_password_in_an_address(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = subject.wire.url.replace("://", "://me:pass-word@")
    with suppress(ModelError):  # of services that want a key
        await subject.model("echo", url=url).complete(HELLO)
    logged = [record.getMessage() for record in caplog.records]
    assert any(subject.wire.url.partition("://")[2] in message for message in logged)
    assert not any("pass-word" in message for message in logged)


@both_ways
@pytest.mark.needs("echo", "wire")
async def test_a_service_that_is_not_there_is_a_retryable_error_that_names_it(subject: Subject, ask: Ask) -> None:
    with pytest.raises(ModelError, match=r"127\.0\.0\.1") as caught:
        await ask(subject.model("echo", url="http://127.0.0.1:9"), HELLO)
    assert caught.value.retryable


@both_ways
@pytest.mark.each("unauthorized", "masked-key", "torn-key", "bad-request", "malformed", "html", "truncated", "breaks")
@pytest.mark.needs("wire")
async def test_the_key_is_sent_but_never_shown_not_even_in_part(subject: Subject, ask: Ask, scenario: str) -> None:
    model = subject.model(scenario)
    with pytest.raises(ModelError) as caught:
        await ask(model, HELLO)
    assert SECRET in str(subject.sent)
    for shown in ("".join(traceback.format_exception(caught.value)), repr(model), repr(caught.value)):
        assert not _parts_of_the_key_in(shown)
    assert caught.value.__context__ is None  # error trackers may read the vendor's error there


@both_ways
@pytest.mark.each("unauthorized", "masked-key", "torn-key")
@pytest.mark.needs("wire")
async def test_no_trace_event_or_log_shows_the_key(
    subject: Subject, ask: Ask, scenario: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[Event] = []
    conductor = Conductor(subject.model("echo"), WorkerPool({"a": subject.model(scenario)}), policy=Policy(single="a"))
    with pytest.raises(RunError) as caught:
        await conductor.run("Hi.", on_event=told.append, stream=ask is streamed)
    assert "[secret]" in str(caught.value)
    told_all = [str(caught.value), caught.value.trace.model_dump_json(), *(one.model_dump_json() for one in told)]
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("rl_conductor")]
    assert not _parts_of_the_key_in("".join(told_all + ours))


def _parts_of_the_key_in(text: str) -> list[str]:
    pieces = [SECRET[start : start + 8] for start in range(len(SECRET) - 7)]
    return [piece for piece in [*pieces, SECRET[:7], SECRET[-4:]] if piece in text]


@pytest.mark.needs("echo", "wire")
async def test_a_model_can_be_sent_to_another_process(subject: Subject) -> None:
    sent = subject.keep(pickle.loads(pickle.dumps(subject.model("echo"))))
    assert (await sent.complete(HELLO)).text == "You said: hello there"


# ------------------------------------------------------------------------------- keys and addresses


@both_ways
@pytest.mark.needs("redirect", "wire")
async def test_a_redirect_is_not_followed(subject: Subject, ask: Ask) -> None:
    with pytest.raises(BadRequestError, match=r"redirects are not followed.*base_url") as caught:
        await ask(subject.model("redirect"), HELLO)
    assert caught.value.status == 307
    assert len(subject.wire.requests) == 1


@pytest.mark.needs("wire")
async def test_blank_space_around_a_key_is_no_part_of_it(subject: Subject) -> None:
    await subject.model("echo", api_key=f" {SECRET}\n").complete(HELLO)
    assert {name for name, value in subject.sent.headers.items() if value.removeprefix("Bearer ") == SECRET}


@pytest.mark.parametrize("key", [f"{SECRET}\n{SECRET}", f"{SECRET}\u2019", f"\ufeff{SECRET}", f"{SECRET}\x7f"])
@pytest.mark.needs("wire")
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(
    subject: Subject, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, address = subject.adapter.variables
    monkeypatch.setenv(variable, key)
    monkeypatch.setenv(address, subject.url)
    for named, options in (("api_key", {"api_key": key}), (variable, {})):
        with pytest.raises(ConfigError, match=f"^{named} is not a valid API key") as caught:
            model(f"{subject.adapter.name}:{subject.adapter.prefix}echo", **options)
        assert not _parts_of_the_key_in("".join(traceback.format_exception(caught.value)))


@both_ways
@pytest.mark.needs("wire")
async def test_the_environments_key_goes_to_the_environments_address_at_no_known_price(
    subject: Subject, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, address = subject.adapter.variables
    monkeypatch.setenv(variable, SECRET)
    monkeypatch.setenv(address, subject.url)
    made = subject.keep(model(f"{subject.adapter.name}:{subject.adapter.prefix}gpt-5"))
    assert made.price is None
    assert (await ask(made, HELLO)).text == "You said: hello there"
    assert SECRET in str(subject.sent.headers)


@both_ways
@pytest.mark.needs("wire", "unauthorized")
async def test_the_error_for_a_rejected_key_names_the_variable_that_has_it(
    subject: Subject, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, address = subject.adapter.variables
    monkeypatch.setenv(variable, SECRET)
    monkeypatch.setenv(address, subject.url)
    made = subject.keep(model(f"{subject.adapter.name}:{subject.adapter.prefix}unauthorized"))
    with pytest.raises(AuthenticationError, match=rf"\(the key is that of {variable}\)$") as caught:
        await ask(made, HELLO)
    assert not _parts_of_the_key_in(str(caught.value))
    with pytest.raises(AuthenticationError) as passed:
        await ask(subject.model("unauthorized"), HELLO)
    assert "the key is that of" not in str(passed.value)


@both_ways
@pytest.mark.needs("wire")
async def test_a_missing_service_is_named_without_the_password_in_its_address(subject: Subject, ask: Ask) -> None:
    with pytest.raises(ModelError, match=r"can't reach http://127\.0\.0\.1:9[/:]") as caught:
        await ask(subject.model("echo", url=f"http://someone:{SECRET}@127.0.0.1:9"), HELLO)
    assert not _parts_of_the_key_in(str(caught.value))


# ------------------------------------------------------------------------- time, loops and connections


@both_ways
@pytest.mark.each("hang", "stall", "trickle")
@pytest.mark.needs("wire")
async def test_a_call_is_given_up_at_its_timeout(subject: Subject, ask: Ask, scenario: str) -> None:
    started = time.monotonic()
    with pytest.raises(ModelTimeoutError) as caught:
        await ask(subject.model(scenario), HELLO.model_copy(update={"timeout": 0.3}))
    assert 0.25 < time.monotonic() - started < SOON
    assert caught.value.retryable
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    await subject.wire.until_open(0)


@both_ways
@pytest.mark.each("hang", "stall")
@pytest.mark.needs("wire")
async def test_cancelling_the_caller_closes_the_connection_and_leaves_no_task(
    subject: Subject, ask: Ask, scenario: str
) -> None:
    call = asyncio.ensure_future(ask(subject.model(scenario), HELLO))
    await subject.wire.until_open(1)
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await subject.wire.until_open(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.needs("stall", "wire")
async def test_a_reader_that_leaves_early_closes_the_connection(subject: Subject) -> None:
    stream = subject.model("stall").stream(HELLO)
    await anext(stream)
    await stream.aclose()
    await subject.wire.until_open(0)


@pytest.mark.needs("hang")
async def test_a_cancelled_call_is_cancelled_at_once(subject: Subject) -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(subject.model("hang").complete(HELLO), 0.05)
    assert time.monotonic() - started < 15  # a scripted model would take 30


@both_ways
@pytest.mark.needs("echo")
async def test_many_calls_at_once_each_get_their_own_answer(subject: Subject, ask: Ask) -> None:
    model = subject.model("echo")
    texts = [f"number {number}" for number in range(40)]
    replies = await asyncio.gather(*(ask(model, Request.user(text)) for text in texts))
    assert [reply.text for reply in replies] == [f"You said: {text}" for text in texts]


@pytest.mark.needs("echo", "wire")
async def test_connections_are_kept_for_the_next_call(subject: Subject) -> None:
    model = subject.model("echo")
    before = subject.wire.connections
    for _ in range(5):
        await model.complete(HELLO)
    assert subject.wire.connections == before + 1


@pytest.mark.needs("echo", "wire")
async def test_closing_a_model_closes_its_connections(subject: Subject) -> None:
    model = subject.model("echo")
    await subject.wire.until_connected(0)
    await model.complete(HELLO)
    assert subject.wire.connected == 1
    await model.aclose()
    await subject.wire.until_connected(0)


@both_ways
@pytest.mark.needs("echo")
async def test_a_closed_model_may_be_used_again(subject: Subject, ask: Ask) -> None:
    model = subject.model("echo")
    await model.aclose()
    for _ in range(2):
        assert (await ask(model, HELLO)).text == "You said: hello there"
        await model.aclose()
        await model.aclose()


@both_ways
@pytest.mark.needs("echo")
def test_one_model_serves_several_event_loops(subject: Subject, ask: Ask) -> None:
    model = subject.model("echo")

    async def use() -> str:
        try:
            return (await ask(model, HELLO)).text
        finally:
            await model.aclose()

    assert [asyncio.run(use()), asyncio.run(use()), run_sync(use())] == ["You said: hello there"] * 3


@pytest.mark.needs("echo")
def test_one_model_serves_sync_callers_again_and_again(subject: Subject) -> None:
    model = subject.model("echo")
    try:
        replies = [run_sync(model.complete(HELLO)).text for _ in range(3)]
    finally:
        run_sync(model.aclose())
    assert replies == ["You said: hello there"] * 3


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the loops die with their connections open: that is the point
@pytest.mark.needs("echo", "wire")
def test_loops_that_ended_take_their_connections_with_them(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    model = subject.model("echo")

    before = subject.wire.connected

    async def use() -> None:
        await model.complete(HELLO)
        gc.collect()
        async with asyncio.timeout(SOON):
            while subject.wire.connected != before + 1:  # noqa: ASYNC110 (the service sees later what was closed)
                await asyncio.sleep(0.01)

    for _ in range(4):
        asyncio.run(use())
    asyncio.run(model.aclose())
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"], "a clean-up ran on another loop"
