from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pytest

from core.runs import SOON, Gated, down, forever, plan, pool_of
from rl_conductor import Conductor, Limits, RunError, ScriptedModel
from rl_conductor.errors import LimitError
from rl_conductor.replay import replay
from rl_conductor.trace.events import Event, Listener, StepStarted
from rl_conductor.trace.observers import RunInfo, observe
from rl_conductor.types import Request

PLAN = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))


class Watching:
    """An observer that stores all events."""

    def __init__(self) -> None:
        self.begun: list[RunInfo] = []
        self.events: list[Event] = []
        self.left: list[str] = []

    @contextmanager
    def __call__(self, begun: RunInfo) -> Iterator[Listener]:
        self.begun.append(begun)
        try:
            yield self.events.append
        except BaseException as error:
            self.left.append(type(error).__name__)
            raise
        self.left.append("well")


@pytest.fixture
def watching() -> Iterator[Watching]:
    made = Watching()
    stop = observe(made)
    yield made
    stop()


def conductor() -> Conductor:
    return Conductor(ScriptedModel(PLAN), pool_of(a="from a", b="from b"), name="house")


async def test_an_observer_hears_every_run_as_its_caller_does(watching: Watching) -> None:
    heard: list[Event] = []
    trace = await conductor().run("Say something.", on_event=heard.append)
    assert watching.events == heard
    (begun,) = watching.begun
    assert (begun.id, begun.conductor, begun.planner) == (trace.id, "house", "scripted:scripted")
    assert begun.workers == {"a": "scripted:a", "b": "scripted:b"}
    assert begun.elapsed < 1
    assert watching.left == ["well"]


async def test_streams_and_completions_are_heard_too(watching: Watching) -> None:
    made = conductor()
    request = Request(messages=())
    async for _ in made.events("Say something."):
        pass
    await made.complete(request.model_copy(update={"messages": (await made.run("Say it.")).request.messages}))
    assert len(watching.begun) == 3


async def test_after_the_end_of_observing_nothing_is_heard() -> None:
    made = Watching()
    observe(made)()
    await conductor().run("Say something.")
    assert made.begun == []


async def test_a_run_without_an_answer_leaves_with_its_error(watching: Watching) -> None:
    with pytest.raises(RunError):
        await Conductor(ScriptedModel(PLAN), pool_of(a=down, b=down)).run("Say something.")
    assert watching.left == ["RunError"]
    assert watching.events[-1].type == "finished"


async def test_a_run_that_never_began_is_left_with_why(watching: Watching) -> None:
    inner = Conductor(ScriptedModel(PLAN), pool_of(a="from a", b="from b"), name="inner")
    outer = Conductor(ScriptedModel(PLAN), pool_of(a=inner, b="from b"), name="outer")
    await outer.run("Say something.", limits=Limits(depth=1))
    assert [begun.conductor for begun in watching.begun] == ["outer", "inner"]
    assert watching.left == [LimitError.__name__, "well"]
    assert [event.trace.error for event in watching.events if event.type == "finished"] == [
        "conductors call one another 2 deep, but limits.depth is 1; raise it, or take a conductor out of a pool",
        None,
    ]


async def test_a_replay_is_no_run(watching: Watching) -> None:
    trace = await conductor().run("Say something.")
    await replay(trace)
    assert len(watching.begun) == 1


async def test_what_a_listener_sets_when_a_step_starts_holds_for_its_call() -> None:
    place: ContextVar[str] = ContextVar("place", default="outside")
    seen: list[tuple[str, str]] = []

    @contextmanager
    def watch(_: RunInfo) -> Iterator[Listener]:
        def hear(event: Event) -> None:
            if isinstance(event, StepStarted):
                place.set(event.worker)

        yield hear

    def worker(name: str) -> ScriptedModel:
        def answer(_: Request) -> str:
            seen.append((name, place.get()))
            return f"from {name}"

        return ScriptedModel(answer, name=name)

    stop = observe(watch)
    side_by_side = plan((0, "Draft it.", []), (1, "Draft it.", []), (2, "Say it.", ["all"]))
    await Conductor(ScriptedModel(side_by_side), pool_of(a=worker("a"), b=worker("b"), c=worker("c"))).run("Say it.")
    stop()
    assert sorted(seen) == [("a", "a"), ("b", "b"), ("c", "c")]


async def test_a_caller_may_name_the_run() -> None:
    assert (await conductor().run("Say something.", run_id="run-7")).id == "run-7"


async def test_a_plan_that_is_not_run_is_heard(watching: Watching) -> None:
    record = await conductor().plan("Say something.")
    assert [event.type for event in watching.events if event.type != "plan_delta"] == [
        "plan_started",
        "workflow_planned",
    ]
    assert record.workflow is not None
    assert watching.left == ["well"]


async def test_a_host_that_starts_the_steps_is_heard_at_each_of_them_and_at_the_end(watching: Watching) -> None:
    made = conductor()
    record = await made.plan("Say something.")
    watching.events.clear()
    heard: list[Event] = []
    first = await made.stepwise("Say something.", record, on_event=heard.append).step(0)
    second = await made.stepwise("Say something.", record, on_event=heard.append).step(1, [first])
    host = made.stepwise("Say something.", record, on_event=heard.append)
    trace = host.finish([first, second])
    assert trace.text == "from b"
    ours = [event for event in watching.events if event.type != "workflow_planned"]
    assert ours == heard
    assert [event.type for event in ours if event.type != "answer_delta"] == [
        *("step_started", "step_finished"),
        *("step_started", "step_finished"),
        "finished",
    ]
    assert [event.plan for event in watching.events if event.type == "workflow_planned"] == [host.plan] * 3
    assert watching.left == ["well"] * 4


async def test_a_step_that_the_host_cancels_ends_what_is_heard(watching: Watching) -> None:
    hangs = Gated("never", forever)
    made = Conductor(ScriptedModel(PLAN), pool_of(a=hangs, b="from b"))
    record = await made.plan("Say something.")
    step = asyncio.ensure_future(made.stepwise("Say something.", record).step(0))
    await asyncio.wait_for(hangs.asked.wait(), SOON)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert watching.left == ["well", "CancelledError"]
