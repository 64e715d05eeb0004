"""`ScriptedModel` beyond the contract that every model keeps."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from rl_conductor.errors import BadRequestError, RateLimitError
from rl_conductor.models import Capabilities
from rl_conductor.models.base import collect
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Completion, Delta, Message, Price, Request, Tool, ToolCall, Usage

HELLO = Request.user("hello there")


def completion(text: str) -> Completion:
    return Completion(message=Message.assistant(text), usage=Usage(), model="m")


async def texts(model: ScriptedModel, count: int) -> list[str]:
    return [(await model.complete(HELLO)).text for _ in range(count)]


async def test_replies_come_in_the_order_of_the_script() -> None:
    model = ScriptedModel(["one", "two"])
    assert await texts(model, 2) == ["one", "two"]
    model.assert_complete()


@pytest.mark.parametrize("reply", ["always", Message.assistant("always"), completion("always")])
async def test_a_single_reply_is_said_every_time(reply: str | Message | Completion) -> None:
    model = ScriptedModel(reply)
    assert await texts(model, 3) == ["always"] * 3
    model.assert_complete()


async def test_a_function_answers_the_request() -> None:
    assert await texts(ScriptedModel(lambda request: request.messages[-1].text.upper()), 1) == ["HELLO THERE"]


async def test_replies_that_nobody_asked_for_show() -> None:
    model = ScriptedModel(["one", "two"])
    await texts(model, 1)
    with pytest.raises(AssertionError, match=r"1 replies.*'two'"):
        model.assert_complete()


async def test_more_calls_than_the_script_has_replies_show() -> None:
    with pytest.raises(AssertionError, match="asked 2 times"):
        await texts(ScriptedModel(["one"]), 2)


async def test_an_error_is_raised_in_its_turn() -> None:
    model = ScriptedModel([RateLimitError("slow down", model="m"), "then"])
    with pytest.raises(RateLimitError):
        await model.complete(HELLO)
    assert await texts(model, 1) == ["then"]


async def test_a_stream_can_break_off_after_some_pieces() -> None:
    stream = ScriptedModel([["one ", "two ", RateLimitError("slow down", model="m")]]).stream(HELLO)
    assert [await anext(stream), await anext(stream)] == [Delta(text="one "), Delta(text="two ")]
    with pytest.raises(RateLimitError):
        await anext(stream)


async def test_tool_calls_and_whole_completions_are_given_as_written() -> None:
    call = ToolCall(id="a", name="clock", arguments="{}")
    whole = Completion(message=Message.assistant("said"), usage=Usage(calls=1, cost=Decimal(3)), model="other")
    model = ScriptedModel([Message.assistant(tool_calls=[call]), whole])
    called = await model.complete(HELLO)
    assert (called.message.tool_calls, called.finish_reason) == ((call,), "tool_calls")
    assert await collect(model.stream(HELLO)) == whole


async def test_usage_counts_words_at_the_given_price() -> None:
    price = Price(input=Decimal(1_000_000), output=Decimal(10_000_000))
    usage = (await ScriptedModel("one two three", price=price).complete(HELLO)).usage
    assert usage == Usage(input_tokens=2, output_tokens=3, calls=1, cost=Decimal(32))


async def test_requests_in_flight_are_counted_until_they_end_or_are_cancelled() -> None:
    model = ScriptedModel("late", delay=30)
    calls = [asyncio.create_task(model.complete(HELLO)) for _ in range(3)]
    await asyncio.sleep(0)
    assert (model.in_flight, model.peak) == (3, 3)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert (model.in_flight, model.peak, len(model.requests)) == (0, 3, 3)


async def test_the_delay_may_depend_on_the_request() -> None:
    model = ScriptedModel("done", delay=lambda request: 30 if "slow" in request.messages[0].text else 0)
    assert (await asyncio.wait_for(model.complete(HELLO), 1)).text == "done"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(model.complete(Request.user("slow")), 0.02)


async def test_what_it_cannot_take_is_refused() -> None:
    model = ScriptedModel("never", capabilities=Capabilities())
    with pytest.raises(BadRequestError):
        await model.complete(HELLO.model_copy(update={"tools": (Tool(name="clock"),)}))
    assert model.in_flight == 0
