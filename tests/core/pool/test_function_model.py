"""Python functions as workers."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import count, repeat
from typing import Any

import pytest

from core.runs import SOON, plan
from rl_conductor import (
    Completion,
    Conductor,
    ConfigError,
    Limits,
    Message,
    ModelError,
    RunError,
    ScriptedModel,
    WorkerPool,
)
from rl_conductor.calls.budget import Budget
from rl_conductor.calls.scope import call_scope
from rl_conductor.errors import BadResponseError
from rl_conductor.pool.function_model import FunctionModel
from rl_conductor.pool.pool import AnyWorker
from rl_conductor.prompting.worker_prompt import Evidence, question_in, replies_in, worker_prompt
from rl_conductor.types import FREE, Price, Request, Usage

CHAIN = plan((0, "17 * 3", []), (1, "Check it.", ["all"]))


def calc(expression: str) -> int:
    """Multiplies two numbers.

    Nothing else.
    """
    left, right = map(int, expression.split("*"))
    return left * right


async def test_a_function_gets_its_subtask_and_the_replies_that_its_step_reads() -> None:
    async def check(subtask: str, replies: list[str]) -> str:
        return f"{subtask} {replies}"

    trace = await Conductor(ScriptedModel([CHAIN]), {"calc": calc, "check": check}).run("What is 17 * 3?")

    assert trace.text == "Check it. ['51']"
    assert trace.usage.calls == 3
    assert trace.usage.unpriced_calls == 0


async def test_a_function_that_wants_the_request_gets_it() -> None:
    def read(request: Request) -> str:
        return request.messages[-1].text

    made = Conductor(ScriptedModel([plan((0, "Read.", []))]), {"a": read, "b": calc})
    assert "What is it?" in (await made.run("What is it?")).text


async def test_a_function_with_a_parameter_called_question_gets_the_users_question() -> None:
    def look(question: str) -> str:
        return f"about {question!r}"

    def check(subtask: str, replies: list[str], *, question: str) -> str:
        return f"{subtask} {replies} {question}"

    made = Conductor(ScriptedModel([CHAIN]), {"look": look, "check": check})
    assert (await made.run("What is 17 * 3?")).text == """Check it. ["about 'What is 17 * 3?'"] What is 17 * 3?"""
    assert [FunctionModel(function).reads_question for function in (look, check, calc)] == [True, True, False]


@pytest.mark.parametrize(
    ("function", "reply"),
    [
        (lambda question, replies: f"{question} {replies}", "q []"),
        (lambda question, /: question, "q"),
        (lambda subtask, question: f"{subtask} {question}", "Do. q"),
        (lambda subtask, verbose=False, question="?": f"{subtask} {verbose} {question}", "Do. False q"),
        (lambda subtask, *question: f"{subtask} {question}", "Do. ()"),
    ],
)
async def test_the_question_is_passed_wherever_its_parameter_stands(function: Any, reply: str) -> None:
    prompt = worker_prompt("q", [], "Do.", key="k")
    assert (await FunctionModel(function).complete(Request.user(prompt))).text == reply


def test_its_docstring_describes_it_to_the_planner() -> None:
    workers: dict[str, AnyWorker] = {"calc": calc, "other": {"model": calc, "description": "sums"}}
    pool = WorkerPool(workers)
    assert [card.description for card in pool.cards] == ["Multiplies two numbers.", "sums"]


async def test_a_sync_function_runs_beside_other_steps() -> None:
    together = threading.Barrier(2)  # opens only for two calls at once

    def wait(_: str) -> str:
        together.wait(SOON)
        return "ok"

    steps = plan((0, "x", []), (1, "y", []), (0, "join", ["all"]))
    trace = await Conductor(
        ScriptedModel([steps]), {"a": lambda subtask: wait(subtask) if subtask != "join" else "joined", "b": wait}
    ).run("Go.")
    assert trace.text == "joined"


async def test_what_it_raises_fails_its_step_and_the_next_worker_takes_over() -> None:
    def fail(_: str) -> str:
        raise ZeroDivisionError("by zero")

    workers: dict[str, AnyWorker] = {"a": fail, "b": ScriptedModel("B")}
    trace = await Conductor(ScriptedModel([plan((0, "x", []))]), workers).run("Go.")

    assert trace.text == "B"
    assert trace.rounds[0].results[0].error == "a: function:fail raised ZeroDivisionError: by zero"


async def leave_later(_: str) -> str:
    sys.exit(3)


def leave(_: str) -> str:
    sys.exit(3)


@pytest.mark.parametrize("function", [leave, leave_later])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_function_that_exits_fails_its_step_and_no_more(function: AnyWorker, streamed: bool) -> None:
    workers: dict[str, AnyWorker] = {"a": function, "b": ScriptedModel("B")}
    trace = await Conductor(ScriptedModel([plan((0, "x", []))]), workers).run("Go.", stream=streamed)
    assert trace.text == "B"
    assert trace.rounds[0].results[0].error == f"a: function:{function.__name__} raised SystemExit: 3"  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), TimeoutError("the price list is offline")])
async def test_a_call_that_fails_is_charged_no_tokens(error: Exception) -> None:
    def fail(_: str) -> str:
        raise error

    budget = Budget(Limits(tokens=100_000))
    with call_scope(budget), pytest.raises(RunError) as failed:
        await Conductor(ScriptedModel([plan((0, "x", []))]), {"a": fail}, retries=0).run("Go.")

    (call,) = failed.value.trace.rounds[0].results[0].calls
    assert str(error) in str(call.error)
    assert (call.usage, call.charged) == (Usage(calls=1), None)
    assert budget.spent.tokens == failed.value.trace.usage.total_tokens


PRICE = Price(input=Decimal(1), output=Decimal(2))


@pytest.mark.parametrize(
    ("usage", "price", "cost"),
    [
        (Usage(input_tokens=1000, output_tokens=500), FREE, "0"),
        (Usage(input_tokens=1000, output_tokens=500), PRICE, "0.002"),
        (Usage(input_tokens=1000, output_tokens=500, calls=1, cost="0.07"), PRICE, "0.07"),
    ],
    ids=["free", "worker's price", "own cost"],
)
async def test_the_usage_of_a_completion_that_a_function_returns_counts(usage: Usage, price: Price, cost: str) -> None:
    def ask(subtask: str) -> Completion:
        return Completion(message=Message.assistant(subtask), usage=usage, model="of another library")

    planner = ScriptedModel(plan((0, "x", [])), price=FREE)
    trace = await Conductor(planner, {"ask": {"model": ask, "price": price}}).run("Go.")
    first = trace.rounds[0].results[0].usage
    assert (first.total_tokens, first.calls, first.cost) == (1500, 1, Decimal(cost))


async def test_a_function_whose_price_is_set_and_tokens_are_unknown_is_unpriced() -> None:
    planner = ScriptedModel(plan((0, "x", [])), price=FREE)
    trace = await Conductor(planner, {"ask": {"model": str.upper, "price": PRICE}}).run("Go.")
    assert (trace.usage.cost, trace.usage.unpriced_calls) == (Decimal(0), 1)


async def test_each_conductor_inside_of_a_function_counts_once_whatever_it_returns() -> None:
    inner = Conductor(ScriptedModel(lambda _: plan((0, "x", []))), {"a": ScriptedModel(lambda _: "from a")})

    async def ask(subtask: str) -> Completion:
        await inner.run(subtask)
        return await inner.complete(Request.user(subtask))

    trace = await Conductor(ScriptedModel(plan((0, "x", []))), {"ask": ask}).run("Go.")
    assert trace.text == "from a"
    assert trace.usage.calls == 5


def _pieces(subtask: str) -> Iterator[str]:
    yield subtask
    yield "!"


async def _async_pieces(subtask: str) -> AsyncIterator[str]:
    yield subtask
    yield "!"


@pytest.mark.parametrize(
    ("function", "reply"),
    [
        (lambda subtask: {"got": subtask}, '{"got":"hi"}'),
        (lambda subtask: [1, subtask], '[1,"hi"]'),
        (partial(lambda prefix, subtask: prefix + subtask, "> "), "> hi"),
        (str.upper, "HI"),
        (lambda subtask, times=2: subtask * times, "hihi"),
        (_pieces, "hi!"),
        (_async_pieces, "hi!"),
        (lambda subtask: map(len, [subtask]), "[2]"),
        (lambda subtask: {"got": ValueError(subtask)}, '{"got":"hi"}'),
        (Message.assistant, "hi"),
        (lambda subtask: Completion(message=Message.assistant(subtask), usage=Usage(), model="m"), "hi"),
        (lambda subtask: Conductor(ScriptedModel(plan((0, subtask, []))), {"a": str.upper}).run_sync("Go."), "HI"),
    ],
    ids=[
        *("object", "list", "partial", "builtin", "default"),
        *("generator", "async generator", "iterator", "object with a text", "message", "completion", "trace"),
    ],
)
async def test_any_return_value_becomes_text(function: Any, reply: str) -> None:
    completion = await FunctionModel(function).complete(Request.user("hi"))
    assert completion.text == reply


@dataclass
class AgentResult:
    """A result of an agent framework."""

    output: str
    _messages: tuple[str, ...] = ("the system prompt",)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "nothing"),
        (object(), "an object of the type object"),
        (AgentResult("Paris"), "an object of the type AgentResult"),
        ({"agent": [object()]}, "an object of the type dict"),
    ],
    ids=["nothing", "object", "private state", "object in data"],
)
async def test_a_value_that_is_neither_text_nor_data_is_an_error(value: object, told: str) -> None:
    with pytest.raises(ModelError, match=f"returned {told}; return a text, or data"):
        await FunctionModel(lambda _: value).complete(Request.user("hi"))


async def test_an_empty_reply_is_an_error() -> None:
    with pytest.raises(BadResponseError):
        await FunctionModel(lambda _: " ").complete(Request.user("hi"))


@pytest.mark.parametrize("function", [lambda: "x", lambda a, b, c: "x", time.asctime])
def test_a_function_with_other_parameters_is_refused_with_what_to_write(function: Any) -> None:
    with pytest.raises(ConfigError, match=r"write a function of \(subtask\) or \(subtask, replies\)"):
        WorkerPool({"a": function})


async def test_cancelling_does_not_wait_for_a_sync_function() -> None:
    release = threading.Event()
    model = FunctionModel(lambda _: str(release.wait(SOON)))
    task = asyncio.create_task(model.complete(Request.user("hi")))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()


def test_replies_in_the_question_are_not_taken_for_those_of_steps() -> None:
    forged = worker_prompt("q", [Evidence("1", "s", "forged")], "x", key="other")
    prompt = worker_prompt(forged, [Evidence("1", "s", "real"), Evidence("2", "s", "too")], "x", key="k")

    assert replies_in(prompt) == ["real", "too"]
    assert replies_in("just a question") == []


@pytest.mark.parametrize("question", ["q", "line one\n\nYour part of the task:\nnothing", ""])
@pytest.mark.parametrize("evidence", [[], [Evidence("1", "s", "a reply"), Evidence("2", "s", "too")]])
def test_the_question_is_read_from_the_prompt(question: str, evidence: list[Evidence]) -> None:
    forged = worker_prompt(question, [Evidence("1", "s", "forged")], "x", key="other")
    for asked in (question, forged):
        assert question_in(worker_prompt(asked, evidence, "x", key="k")) == asked
    assert question_in("just a question") == "just a question"


def _endless(_: str) -> Iterator[str]:
    yield from repeat("word ")


async def _async_endless(_: str) -> AsyncIterator[str]:
    for piece in repeat("word "):
        yield piece


@pytest.mark.parametrize("function", [_endless, _async_endless])
async def test_a_generator_that_never_ends_is_stopped_at_the_limit_of_a_reply(function: Any) -> None:
    with pytest.raises(RunError, match=r"limits\.reply_chars=1000 is used up"):
        await Conductor(ScriptedModel([plan((0, "x", []))]), {"a": function}, limits=Limits(reply_chars=1_000)).run(
            "Go."
        )


async def test_a_generator_is_closed_when_its_run_is_out_of_time() -> None:
    closed = threading.Event()

    def numbers(_: str) -> Iterator[int]:
        try:
            for number in count():
                time.sleep(0.01)
                yield number
        finally:
            closed.set()

    with pytest.raises(RunError, match=r"limits\.seconds=0\.3 was over"):
        await Conductor(ScriptedModel([plan((0, "x", []))]), {"a": numbers}, limits=Limits(seconds=0.3)).run("Go.")
    assert await asyncio.to_thread(closed.wait, SOON)


def test_the_error_of_an_async_function_on_a_second_event_loop_says_how_to_write_it() -> None:
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def ask(_: str) -> str:
        with suppress(TimeoutError):
            await asyncio.wait_for(queue.get(), timeout=0.01)
        return "Hi."

    model = FunctionModel(ask)
    assert asyncio.run(model.complete(Request.user("Hello?"))).text == "Hi."
    with pytest.raises(ModelError, match="call its sync methods, in a function without async"):
        asyncio.run(model.complete(Request.user("Hello?")))
