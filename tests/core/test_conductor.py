"""The Conductor as a whole, and as a model among models."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from core.runs import SOON, Gated, Paced, down, forever, leftover_tasks, plan, pool_of, worker
from rl_conductor.conductor import Conductor
from rl_conductor.config.profiles import MINI, ULTRA, profile_named
from rl_conductor.errors import ConfigError, ModelError, PolicyError, RunError
from rl_conductor.models import Model
from rl_conductor.models.base import collect
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.trace.events import Event, Finished, PlanStarted
from rl_conductor.types import FREE, Completion, ImagePart, Message, Price, Request
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy

ONE = plan((0, "answer", []))
TWO = plan((0, "x", []), (1, "y", ["all"]))
QUESTION = Request.user("What is it?")


def conductor(*plans: Any, pool: WorkerPool | None = None, **options: Any) -> Conductor:
    return Conductor(ScriptedModel(plans or [ONE], name="p"), pool or pool_of(a="one two three"), **options)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            {"limits": {"calls": 1}},
            r"^\{'calls': 1\} is not an instance of Limits; write Limits\(\*\*\{'calls': 1\}\), or None",
        ),
        ({"limits": {}}, r"^\{\} is not an instance of Limits; write Limits\(\), or None for the default$"),
        ({"policy": "cheap"}, r"^'cheap' is not an instance of Policy; write Policy\(\.\.\.\), or None"),
        ({"policy": ""}, r"^'' is not an instance of Policy; write Policy\(\.\.\.\), or None for the default$"),
    ],
)
async def test_limits_and_policies_of_another_type_are_refused(option: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        conductor(**option)
    with pytest.raises(ConfigError, match=message):
        conductor().replaced(**option)
    with pytest.raises(ConfigError, match=message):
        await conductor().run(QUESTION, **option)
    with pytest.raises(ConfigError, match=message):
        await conductor().plan(QUESTION, **option)


# --------------------------------------------------------------------------------------- questions


@pytest.mark.parametrize("question", [None, b"What?", 5, ["What?"]])
async def test_a_question_of_another_type_is_refused(question: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"^a value of type {type(question).__name__} is not a question; write text, a list"
    ):
        await conductor().run(question)


@pytest.mark.parametrize("question", ["What?", [Message.user("What?")], Request.user("What?")])
async def test_a_question_may_be_words_a_conversation_or_a_request(question: Any) -> None:
    trace = await conductor().run(question)

    assert trace.request == Request.user("What?")


@pytest.mark.parametrize("question", ["", " \n", [], [Message.user("  ")], Request(messages=()), [Message.assistant()]])
async def test_an_empty_question_is_refused(question: Any) -> None:
    with pytest.raises(ConfigError, match="the question is empty"):
        await conductor().run(question)


async def test_a_picture_alone_is_a_question() -> None:
    assert (await conductor().run([Message(role="user", content=(ImagePart(url="https://x"),))])).text


def test_a_conductor_with_other_parts_keeps_its_own_for_the_rest() -> None:
    made = conductor(
        policy=Policy(final="a"),
        access="positional",
        retries=7,
        keep_prompts=False,
        name="house",
        limits=Limits(steps=2),
    )
    other = Planner(model=ScriptedModel(""))

    assert made.replaced().config == made.config
    assert made.replaced(planner=other).config == replace(made.config, planner=other)
    changed = made.replaced(pool=pool_of(a="", b=""), limits=Limits(steps=3), access="binary")
    assert (list(changed.pool), changed.limits.steps, changed.config.access) == (["a", "b"], 3, "binary")
    with pytest.raises(PolicyError, match=r"policy.final is 'a'"):
        made.replaced(pool=pool_of(b=""))


def test_a_planner_may_be_a_name_a_model_or_a_planner() -> None:
    model = ScriptedModel("")

    assert Conductor("ollama:x", pool_of(a="")).planner.model.name == "ollama:x"
    assert Conductor(model, pool_of(a="")).planner == Planner(model=model)
    assert Conductor(Planner(model=model, samples=1), pool_of(a="")).planner.samples == 1


async def test_policy_and_limits_of_a_run_go_before_the_conductors_own() -> None:
    made = conductor(TWO, TWO, ONE, pool=pool_of(a="A", b="B"), policy=Policy(final="b"), limits=Limits(steps=3))

    assert (await made.run("What?")).text == "B"
    trace = await made.run("What?", policy=Policy(single="a"), limits=Limits(steps=1))
    assert (trace.text, trace.policy, trace.limits) == ("A", Policy(single="a"), Limits(steps=1))


# ------------------------------------------------------------------------------------------ events


async def test_events_end_with_the_trace() -> None:
    events = [event async for event in conductor().events("What is it?")]

    assert isinstance(events[0], PlanStarted)
    assert isinstance(events[-1], Finished)
    assert events[-1].trace.text == "one two three"


async def test_events_end_with_the_trace_and_then_the_error() -> None:
    events: list[Event] = []

    async def read() -> None:
        async for event in conductor(pool=pool_of(a=down)).events("What is it?"):
            events.append(event)  # noqa: PERF401 (they are needed though it raises)

    with pytest.raises(RunError):
        await read()
    assert isinstance(events[-1], Finished)


@pytest.mark.parametrize(
    "kind",
    [
        *("plan_started", "plan_delta", "workflow_planned", "step_started", "step_finished"),
        *("answer_delta", "finished"),
    ],
)
async def test_a_listener_that_fails_ends_the_run_with_its_own_error_and_blames_no_model(kind: str) -> None:
    def listen(event: Event) -> None:
        if event.type == kind:
            raise ZeroDivisionError(kind)

    with pytest.raises(ZeroDivisionError):
        await conductor(TWO, pool=pool_of(a="A", b="B")).run("What?", on_event=listen, stream=True)
    assert not leftover_tasks()


@pytest.mark.parametrize(("kind", "calls"), [("plan_delta", 1), ("answer_delta", 3)])
async def test_a_call_whose_text_a_listener_fails_to_take_is_in_the_trace(kind: str, calls: int) -> None:
    events: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        if event.type == kind:
            raise ZeroDivisionError(kind)

    with pytest.raises(ZeroDivisionError):
        await conductor(TWO, pool=pool_of(a="A", b="B")).run("What?", on_event=listen, stream=True)
    assert isinstance(events[-1], Finished)
    assert [call.outcome for call in events[-1].trace.calls] == ["ok"] * (calls - 1) + ["cancelled"]


async def test_whoever_stops_listening_cancels_the_run() -> None:
    hangs = Gated("never", forever)
    stream = conductor(pool=pool_of(a=hangs)).events("What is it?")
    async for _ in stream:
        if hangs.asked.is_set():
            break
    assert hangs.held == 1

    await stream.aclose()

    assert hangs.held == 0
    assert not leftover_tasks()


async def test_a_plan_that_is_cancelled_tells_what_it_cost() -> None:
    hangs = Gated("never", forever)
    events: list[Event] = []
    planning = asyncio.create_task(Conductor(hangs, pool_of(a="A")).plan("What is it?", on_event=events.append))
    await asyncio.wait_for(hangs.asked.wait(), SOON)
    planning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await planning
    assert isinstance(events[-1], Finished)
    assert (events[-1].trace.was_cancelled, events[-1].trace.usage.calls) == (True, 1)


async def test_a_run_whose_worker_says_that_it_was_cancelled_was_not_cancelled() -> None:
    worker = ScriptedModel(lambda _: ModelError("cancelled", model="a"))
    with pytest.raises(RunError) as failed:
        await Conductor(ScriptedModel(plan((0, "Say it.", []))), WorkerPool({"a": worker})).run("Say something.")
    assert not failed.value.trace.was_cancelled


# ---------------------------------------------------------------------------------------- as Model


async def test_a_conductor_is_a_model() -> None:
    made: Model = conductor(ONE, ONE, name="mine")

    assert isinstance(made, Model)
    assert (made.name, made.price, made.capabilities.delegates) == ("conductor:mine", FREE, True)
    completion = await made.complete(QUESTION)
    assert (completion.text, completion.usage.calls, completion.model) == ("one two three", 2, "scripted:a")
    streamed = [delta async for delta in made.stream(QUESTION)]
    assert [delta.text for delta in streamed[:-1]] == ["one ", "two ", "three"]
    assert streamed[-1].completion is not None
    assert streamed[-1].completion.text == completion.text


async def test_a_conductor_that_has_no_answer_raises_as_model_too() -> None:
    made = conductor(ONE, ONE, pool=pool_of(a=down))

    with pytest.raises(RunError):
        await made.complete(QUESTION)
    with pytest.raises(RunError):
        await collect(made.stream(QUESTION))


async def test_closing_the_stream_of_a_conductor_cancels_its_run_at_once() -> None:
    async def pause(said: str) -> None:
        if said == "one ":
            pauses.set()
            await forever(QUESTION)

    pauses = asyncio.Event()
    model = Paced([["one ", "two"]], pause)
    stream = conductor(pool=pool_of(a=model)).stream(QUESTION)
    assert (await anext(stream)).text == "one "
    await asyncio.wait_for(pauses.wait(), SOON)

    await stream.aclose()

    assert not leftover_tasks()
    assert model.in_flight == 0


async def test_a_conductor_works_in_the_pool_of_another_and_streams_through_it() -> None:
    inner = conductor(ONE)
    outer = conductor(ONE, pool=pool_of(inner=worker("inner", inner)))

    deltas = [delta async for delta in outer.stream(QUESTION)]

    assert [delta.text for delta in deltas[:-1]] == ["one ", "two ", "three"]
    assert deltas[-1].completion is not None
    assert deltas[-1].completion.usage.calls == 3


class Wrapped(ScriptedModel):
    """A model that does not say that a conductor answers for it."""

    def __init__(self, inner: Conductor) -> None:
        super().__init__("", price=Price(input=Decimal(1), output=Decimal(1)))
        self.inner = inner

    async def complete(self, request: Request) -> Completion:
        """The inner conductor's answer."""
        return await self.inner.complete(request)


async def test_a_conductor_within_a_wrapper_takes_the_wrappers_place_and_is_charged_once() -> None:
    inner = conductor(ONE)
    outer = conductor(ONE, pool=pool_of(inner=worker("inner", Wrapped(inner))), limits=Limits(concurrency=1, calls=3))

    trace = await asyncio.wait_for(outer.run(QUESTION), SOON)

    assert trace.text == "one two three"
    assert trace.usage.calls == 3


async def test_cancelling_the_outer_run_cancels_the_inner_one() -> None:
    hangs = Gated("never", forever)
    inner = conductor(pool=pool_of(a=hangs))
    events: list[Event] = []
    outer = conductor(pool=pool_of(inner=worker("inner", inner)))
    task = asyncio.create_task(outer.run("What is it?", on_event=events.append))
    await asyncio.wait_for(hangs.asked.wait(), SOON)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert hangs.held == 0
    assert not leftover_tasks()
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.trace.usage_by_worker["inner"].calls == 2, "the inner plan and the call that hung"
    assert last.trace.usage.unpriced_calls == 0


async def test_closing_closes_every_model_once_even_in_a_pool_of_its_own() -> None:
    class Closing(ScriptedModel):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1

    planner, model = Closing(""), Closing("")
    made = Conductor(planner, pool_of(a=model))
    made.config = replace(made.config, pool=WorkerPool([*made.pool.values(), worker("itself", made)]))

    await made.aclose()

    assert (planner.closed, model.closed) == (1, 1)
    await made.aclose()
    assert model.closed == 2


# ---------------------------------------------------------------------------------------- profiles


def test_profiles_are_found_by_name() -> None:
    assert (profile_named("mini"), profile_named("ultra")) == (MINI, ULTRA)
    with pytest.raises(ConfigError, match="'mini' or 'ultra'"):
        profile_named("huge")


def test_a_thrifty_profile_lists_cheap_and_quick_workers_first() -> None:
    def priced(name: str, dollars: int | None, **options: Any) -> Any:
        price = None if dollars is None else Price(input=Decimal(dollars), output=Decimal(0))
        return worker(name, ScriptedModel("", price=price), **options)

    pool = WorkerPool(
        [priced("unknown", None), priced("dear", 9), priced("slow", 1, latency=5.0), priced("quick", 1, latency=1.0)]
    )

    assert list(MINI.ordered(pool)) == ["quick", "slow", "dear", "unknown"]
    assert ULTRA.ordered(pool) is pool


def test_what_a_call_costs_counts_where_cheap_workers_go_first() -> None:
    a_dollar = ScriptedModel("", price=Price(input=Decimal(0), output=Decimal(0), per_call=Decimal(1)))
    cheap = ScriptedModel("", price=Price(input=Decimal(1), output=Decimal(2)))

    assert list(MINI.ordered(pool_of(dollar=worker("dollar", a_dollar), cheap=worker("cheap", cheap)))) == [
        "cheap",
        "dollar",
    ]
