"""Workers that use up their output tokens before they write an answer."""

from __future__ import annotations

from typing import Any

import pytest

from core.runs import plan, pool_of
from rl_conductor.cli.output.report import problems
from rl_conductor.conductor import Conductor
from rl_conductor.errors import RunError
from rl_conductor.models.scripted import ALL, ScriptedModel
from rl_conductor.pool.worker import Worker
from rl_conductor.replay import differences, replay
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Completion, FinishReason, Message, ReasoningPart, Request, Sampling
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.request_tokens import DEFAULT_OUTPUT_TOKENS, PLAN_TOKENS

ONE = plan((0, "answer", []))


def only_reasoning(cap: int) -> Any:
    """A script that reasons without an answer unless it gets more than `cap` output tokens."""

    def reply(request: Request) -> str | Completion:
        assert request.sampling.max_tokens is not None
        if request.sampling.max_tokens > cap:
            return "A"
        message = Message(role="assistant", content=(ReasoningPart(text="Hm."),))
        return Completion(message=message, finish_reason="length", model="scripted:a")

    return reply


def caps(model: ScriptedModel) -> list[int | None]:
    return [request.sampling.max_tokens for request in model.requests]


async def run(pool: Any, request: Any = "What is it?", **options: Any) -> Trace:
    return await Conductor(ScriptedModel([ONE]), pool, **options).run(request)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_that_spends_its_default_cap_on_reasoning_gets_a_larger_one_once(stream: bool) -> None:
    model = ScriptedModel(only_reasoning(DEFAULT_OUTPUT_TOKENS), name="a")
    trace = await Conductor(ScriptedModel([ONE]), pool_of(a=model, b="B")).run("What is it?", stream=stream)

    assert (trace.text, caps(model)) == ("A", [4_096, 16_384])
    (result,) = trace.results
    assert [call.out_of_tokens for call in result.calls] == [True, False]
    assert "ran out of output tokens" in (result.error or "")


async def test_then_another_worker_takes_over() -> None:
    model = ScriptedModel(only_reasoning(10**6), name="a")
    trace = await run(pool_of(a=model, b="B"))

    assert (trace.text, caps(model)) == ("B", [4_096, 16_384])


async def test_a_cap_of_the_caller_is_kept() -> None:
    model = ScriptedModel(only_reasoning(DEFAULT_OUTPUT_TOKENS), name="a")
    request = Request.user("What is it?", sampling=Sampling(max_tokens=100))

    assert (await run(pool_of(a=model, b=ScriptedModel(lambda _: "B")), request)).text == "B"
    assert caps(model) == [100]


@pytest.mark.parametrize(("context", "expected"), [(4_000, [4_096]), (10_000, [4_096, 10_000 - 2 * 40])])
async def test_a_larger_cap_stays_within_the_context(context: int, expected: list[int]) -> None:
    can = ALL.model_copy(update={"context": context})
    model = ScriptedModel(only_reasoning(10**6), name="a", capabilities=can)

    with pytest.raises(RunError, match="ran out of output tokens"):
        await run(pool_of(a=model), "x" * 240, limits=Limits(steps=1))
    assert caps(model) == expected


async def test_a_worker_of_several_steps_gets_a_larger_cap_in_each() -> None:
    model = ScriptedModel(only_reasoning(50), name="a")
    pool = pool_of(a=Worker.of("a", model, sampling=Sampling(max_tokens=50)))
    planner = ScriptedModel([plan((0, "draft", []), (0, "answer", ["all"]))])

    trace = await Conductor(planner, pool).run("What is it?")

    assert (trace.text, caps(model)) == ("A", [50, 200, 50, 200])


async def test_a_run_with_a_larger_cap_is_replayed() -> None:
    model = ScriptedModel(only_reasoning(DEFAULT_OUTPUT_TOKENS), name="a")
    trace = await run(pool_of(a=model, b="B"))

    assert Trace.model_validate_json(trace.model_dump_json()) == trace
    assert differences(trace, await replay(trace)) == ()


@pytest.mark.parametrize(
    ("reason", "problem"),
    [
        ("length", "the reply was cut off when it reached max_tokens"),
        ("content_filter", "the vendor's content filter refused or cut off the reply"),
    ],
)
async def test_the_command_line_says_which_reply_was_cut_off(reason: FinishReason, problem: str) -> None:
    cut = Completion(message=Message.assistant("Half of"), finish_reason=reason, model="scripted:a")
    trace = await run(pool_of(a=ScriptedModel(lambda _: cut)))

    assert trace.completion is not None
    assert trace.completion.finish_reason == reason
    assert [line.plain for line in problems(trace)] == [f"! step 1: a: {problem}"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_planner_that_spends_its_default_cap_on_reasoning_gets_a_larger_one_once(stream: bool) -> None:
    def plans(request: Request) -> str | Completion:
        reply = only_reasoning(PLAN_TOKENS)(request)
        return ONE if reply == "A" else reply

    planner = ScriptedModel(plans)
    trace = await Conductor(planner, pool_of(a="A", b="B")).run("What is it?", stream=stream)

    assert (trace.rounds[0].plan.source, caps(planner)) == ("planner", [1_024, 4_096])
    assert "ran out of output tokens" in trace.rounds[0].plan.errors[0]
    assert [call.out_of_tokens for call in trace.rounds[0].plan.calls] == [True, False]


async def test_a_planner_that_never_ends_its_reasoning_is_asked_twice() -> None:
    planner = ScriptedModel(only_reasoning(10**6))
    trace = await Conductor(planner, pool_of(a="A", b="B")).run("What is it?")
    assert (trace.rounds[0].plan.source, caps(planner)) == ("fallback", [1_024, 4_096])
