"""Runs that are taken up again, and runs whose steps a host starts itself: nothing that is done is asked for twice."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.runs import ACCEPT, Gated, down, evidence_of, finished, forever, plan, pool_of, started, subtask_of, workflow
from core.strategies import spaces, workflows
from rl_conductor import Conductor, Limits, Message, Price, Request, RunError, ScriptedModel
from rl_conductor.errors import ConfigError, WorkflowError, WorkflowValidationError
from rl_conductor.events import Event, Finished
from rl_conductor.policy import Policy
from rl_conductor.stepwise import Stepwise
from rl_conductor.trace import PlanRecord, Round, StepResult
from rl_conductor.types import Continuation, Tool, ToolCall
from rl_conductor.workflow import PlanSpace, Workflow

DIAMOND = workflow(("a", "look", ()), ("b", "count", ()), ("a", "join", (0, 1)), ("b", "tell", (2,)))
PAID = Price(input=Decimal(1), output=Decimal(1), per_call=Decimal(1))


def told(request: Request) -> str:
    """A reply that shows what was asked and seen."""
    seen = ", ".join(text for _, _, text in evidence_of(request))
    return f"{subtask_of(request)}({seen})"


def conductor(**options: object) -> Conductor:
    return Conductor(ScriptedModel([]), pool_of(a=told, b=told), access="positional", **options)  # type: ignore[arg-type]


def asked(one: Conductor) -> list[str]:
    """The subtasks that the workers were given, worker by worker."""
    models = [worker.model for worker in one.pool.values()]
    return [subtask_of(request) for model in models if isinstance(model, ScriptedModel) for request in model.requests]


def cut(whole: Round, indices: set[int]) -> Round:
    """A round as a store has it that knows of these steps only."""
    return Round(plan=whole.plan, results=tuple(result for result in whole.results if result.index in indices))


# ------------------------------------------------------------------------------------------ resume


async def test_a_resumed_run_asks_only_for_the_steps_that_were_not_done() -> None:
    whole = await conductor().run("q", workflow=DIAMOND)
    resumed = conductor()
    trace = await resumed.run("q", resume=[cut(whole.rounds[0], {0, 1})])
    assert asked(resumed) == ["join", "tell"]
    assert trace.text == whole.text == "tell(join(look(), count()))"
    assert [result.status for result in trace.results()] == ["ok"] * 4


async def test_a_run_that_was_done_but_not_delivered_calls_nobody() -> None:
    whole = await conductor().run("q", workflow=DIAMOND)
    resumed = conductor()
    trace = await resumed.run("q", resume=whole.rounds)
    assert asked(resumed) == []
    assert (trace.text, trace.usage) == (whole.text, whole.usage)


async def test_the_planner_is_not_asked_again_for_a_plan_that_stands() -> None:
    made = Conductor(ScriptedModel([plan((0, "only", []))]), pool_of(a="one")).run("q")
    again = Conductor(ScriptedModel([]), pool_of(a="two"))
    trace = await again.run("q", resume=[cut((await made).rounds[0], set())])
    assert trace.text == "two"
    assert trace.rounds[0].plan.source == "planner"


async def test_a_listener_of_a_resumed_run_is_told_of_every_step_once() -> None:
    whole = await conductor().run("q", workflow=DIAMOND)
    events: list[Event] = []
    await conductor().run("q", resume=[cut(whole.rounds[0], {0, 1})], on_event=events.append)
    assert finished(events) == [0, 1, 2, 3]
    assert [index for index, _, _ in started(events)] == [2, 3]


async def test_a_run_that_ran_out_of_time_goes_on_from_its_trace_and_keeps_the_calls_that_were_cut_short() -> None:
    slow = Conductor(ScriptedModel([]), pool_of(a=told, b=Gated("never", forever)), access="positional")
    late = await slow.run("q", workflow=DIAMOND, limits=Limits(seconds=0.2))
    resumed = conductor()
    trace = await resumed.run("q", resume=late.rounds)
    assert asked(resumed) == ["join", "count", "tell"]
    assert trace.text == "tell(join(look(), count()))"
    assert {(call.worker, call.outcome) for call in trace.rounds[0].plan.calls} >= {("b", "timeout")}


async def test_a_plan_that_was_cut_short_is_made_again() -> None:
    events: list[Event] = []
    stuck = Conductor(Gated("never", forever), pool_of(a="one", b="two"))
    running = asyncio.create_task(stuck.run("q", on_event=events.append))
    await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert isinstance(events[-1], Finished)
    planner = ScriptedModel([plan((1, "only", []))])
    trace = await Conductor(planner, pool_of(a="one", b="two")).run("q", resume=events[-1].trace.rounds)
    assert trace.text == "two"
    assert [call.outcome for call in trace.rounds[0].plan.calls] == ["ok", "cancelled"]


async def test_a_second_round_goes_on_as_a_second_round() -> None:
    def made(planner: ScriptedModel) -> Conductor:
        return Conductor(planner, pool_of(a=told), limits=Limits(rounds=2))

    first = await made(ScriptedModel([plan((0, "draft", [])), ACCEPT])).run("q")
    planner = ScriptedModel([ACCEPT])
    trace = await made(planner).run("q", resume=first.rounds[:1])
    planner.assert_complete()
    assert [one.plan.workflow is None for one in trace.rounds] == [False, True]
    assert trace.text == "draft()"
    accepted = await made(ScriptedModel([])).run("q", resume=first.rounds)
    assert accepted.text == "draft()"


async def test_what_was_spent_before_counts_towards_the_budget() -> None:
    dear = {"a": ScriptedModel(told, price=PAID), "b": ScriptedModel(told, price=PAID)}
    whole = await Conductor(ScriptedModel([]), pool_of(**dear), access="positional").run("q", workflow=DIAMOND)
    poor = Conductor(ScriptedModel([]), pool_of(**dear), access="positional", limits=Limits(calls=2))
    with pytest.raises(RunError, match=r"limits\.calls=2"):
        await poor.run("q", resume=[cut(whole.rounds[0], {0, 1, 2})], policy=Policy(final="b"))


async def test_a_plan_that_the_policy_has_come_to_forbid_is_not_resumed() -> None:
    whole = await conductor().run("q", workflow=DIAMOND)
    with pytest.raises(WorkflowValidationError, match="'b'"):
        await conductor().run("q", resume=whole.rounds, policy=Policy(deny=frozenset({"b"})))


@st.composite
def interrupted(draw: st.DrawFn) -> tuple[PlanSpace, Workflow, frozenset[int]]:
    """A workflow and the steps that were done before the interruption: with each step all that it reads."""
    space = draw(spaces().map(lambda space: space.model_copy(update={"last_reads_all": False, "recalled": None})))
    planned = draw(workflows(space))
    done: set[int] = set()
    for index in sorted(planned.needed):
        if planned.steps[index].access <= done and draw(st.booleans()):
            done.add(index)
    return space, planned, frozenset(done)


@given(interrupted())
async def test_resuming_anywhere_gives_the_same_answer_and_calls_each_step_once(
    drawn: tuple[PlanSpace, Workflow, frozenset[int]],
) -> None:
    space, planned, done = drawn
    pools = [pool_of(**{name: ScriptedModel(told) for name in space.roster}) for _ in range(2)]
    first, second = (Conductor(ScriptedModel([]), pool, access="positional") for pool in pools)
    whole = await first.run("q", workflow=planned)
    trace = await second.run("q", resume=[cut(whole.rounds[0], set(done))])
    assert trace.text == whole.text
    assert len(asked(second)) == len(planned.needed) - len(done)
    assert trace.usage == whole.usage


# ---------------------------------------------------------------------------------------- stepwise


async def run_stepwise(steps: Stepwise) -> list[StepResult]:
    """What a host does that runs the steps in their order and stores each result as text."""
    stored: list[str] = []
    for index in sorted(steps.workflow.needed):
        done = [StepResult.model_validate_json(text) for text in stored]
        stored.append((await steps.step(index, done)).model_dump_json())
    return [StepResult.model_validate_json(text) for text in stored]


async def test_steps_run_one_by_one_make_the_trace_that_a_run_makes() -> None:
    whole = await conductor().run("q", workflow=DIAMOND)
    steps = conductor().stepwise("q", DIAMOND)
    trace = steps.finish(await run_stepwise(steps))
    assert trace.text == whole.text
    assert trace.usage == whole.usage


async def test_a_plan_that_was_made_apart_is_run_as_it_was_made() -> None:
    one = Conductor(ScriptedModel([plan((0, "x", []), (1, "y", ["all"]))]), pool_of(a=told, b=told))
    record = PlanRecord.model_validate_json((await one.plan("q")).model_dump_json())
    steps = one.stepwise("q", record)
    trace = steps.finish(await run_stepwise(steps))
    assert trace.text == "y(x())"
    assert trace.rounds[0].plan == record
    assert not steps.again


async def test_another_round_follows_while_limits_and_policy_allow() -> None:
    planner = ScriptedModel([plan((0, "draft", [])), ACCEPT])
    one = Conductor(planner, pool_of(a=told), limits=Limits(rounds=2))
    first = one.stepwise("q", await one.plan("q"))
    trace = first.finish(await run_stepwise(first))
    assert first.again
    record = await one.plan("q", before=trace.rounds)
    assert record.workflow is None, "the answer of the round before was accepted"
    with pytest.raises(ConfigError, match="no steps to run"):
        one.stepwise("q", record, before=trace.rounds)


async def test_a_step_whose_reading_is_missing_is_refused() -> None:
    steps = conductor().stepwise("q", DIAMOND)
    first = await steps.step(0)
    with pytest.raises(ConfigError, match="not done: 2"):
        await steps.step(2, [first])
    with pytest.raises(ConfigError, match="not done: 2, 3, 4"):
        steps.finish([first])


async def test_a_failed_step_is_a_result_and_the_answer_falls_back() -> None:
    one = Conductor(ScriptedModel([]), pool_of(a=told, b=down), access="positional")
    steps = one.stepwise("q", workflow(("a", "look", ()), ("b", "tell", (0,))), policy=None)
    done = await run_stepwise(steps)
    assert [result.status for result in done] == ["ok", "ok"], "another worker took the step over"
    assert steps.finish(done).text == "tell(look())"


async def test_results_of_another_process_are_charged_once() -> None:
    dear = pool_of(a=ScriptedModel(told, price=PAID), b=ScriptedModel(told, price=PAID))
    one = Conductor(ScriptedModel([]), dear, access="positional", limits=Limits(calls=4))
    before = one.stepwise("q", DIAMOND)
    done = [await before.step(0), await before.step(1)]
    after = one.stepwise("q", DIAMOND)
    done.append(await after.step(2, done))
    done.append(await after.step(3, done))
    assert done[-1].status == "ok"
    poor = one.stepwise("q", DIAMOND, limits=Limits(calls=2))
    assert "limits.calls=2" in str((await poor.step(2, done[:2])).error)


def bringing(worker: str) -> Request:
    """The turn that brings `worker` the result of its tool call."""
    call = ToolCall(id="c", name="look", arguments="{}")
    left = Continuation(worker=worker, prompt="the prompt")
    turns = (
        Message.user("q"),
        Message.assistant("", tool_calls=(call,)).model_copy(update={"continuation": left}),
        Message(role="tool", content=Message.user("found").content, tool_call_id="c"),
    )
    return Request(messages=turns, tools=(Tool(name="look", description="", parameters={}),))


async def test_the_turn_that_brings_tool_results_goes_on_with_its_worker() -> None:
    request = bringing("b")
    one = Conductor(ScriptedModel([]), pool_of(a="wrong", b="right"))
    record = await one.plan(request)
    assert record.source == "continuation"
    steps = one.stepwise(request, record)
    assert steps.finish(await run_stepwise(steps)).text == "right"


async def test_a_host_can_not_run_what_a_forged_continuation_names() -> None:
    forged = PlanRecord(source="continuation", workflow=workflow(("bad", "x", ())))
    denied = ScriptedModel("never")
    one = Conductor(ScriptedModel([]), pool_of(bad=denied, b="B"), policy=Policy(deny=frozenset({"bad"})))
    for request in (bringing("bad"), Request(messages=(Message.user("q"),))):
        with pytest.raises(WorkflowError):
            one.stepwise(request, forged)
    steps = one.stepwise(bringing("b"), forged)  # the plan is the message's, whatever the record says
    assert steps.finish(await run_stepwise(steps)).text == "B"
    assert denied.requests == []


async def test_a_deadline_counts_the_time_that_was_used_before() -> None:
    whole = await conductor().run("q", workflow=DIAMOND)
    late = tuple(
        result.model_copy(update={"calls": tuple(c.model_copy(update={"seconds": 9.0}) for c in result.calls)})
        for result in whole.rounds[0].results[:3]
    )
    begun = Round(plan=whole.rounds[0].plan, results=late)
    trace = await conductor().run("q", resume=[begun], limits=Limits(seconds=9))
    assert "limits.seconds=9" in str(trace.rounds[0].results[-1].error)
