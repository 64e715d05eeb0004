"""Runs that are taken up again, and runs whose steps a host starts itself: nothing that is done is asked for twice."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.runs import (
    ACCEPT,
    SOON,
    Gated,
    down,
    evidence_of,
    finished,
    forever,
    leftover_tasks,
    plan,
    pool_of,
    started,
    subtask_of,
    worker,
    workflow,
)
from core.scripted_guardrails import Check
from core.strategies import spaces, workflows
from rl_conductor import Conductor, Limits, Message, Price, Request, RunError, ScriptedModel
from rl_conductor.errors import ConductorError, ConfigError, WorkflowError, WorkflowValidationError
from rl_conductor.execution.stepwise import Stepwise
from rl_conductor.guardrails.base import Allow, Content, Verdict
from rl_conductor.integration import PauseSignal
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.trace.events import Event, Finished
from rl_conductor.trace.trace import Call, PlanRecord, Round, StepResult, Trace
from rl_conductor.types import FREE, Card, Completion, Continuation, Sampling, Tool, ToolCall, Usage
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.policy import DataRule, Flow, Policy
from rl_conductor.workflow.workflow import Workflow

DIAMOND = workflow(("a", "look", ()), ("b", "count", ()), ("a", "join", (0, 1)), ("b", "tell", (2,)))
PAID = Price(input=Decimal(1), output=Decimal(1), per_call=Decimal(1))
UNPLANNED = Round(plan=PlanRecord(source="planner", errors=("cancelled",)))


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
    assert [result.status for result in trace.results] == ["ok"] * 4


async def test_a_run_that_was_done_but_not_delivered_calls_nobody() -> None:
    whole = await conductor().run("q", workflow=DIAMOND)
    resumed = conductor()
    trace = await resumed.run("q", resume=whole.rounds)
    assert asked(resumed) == []
    assert (trace.text, trace.usage) == (whole.text, whole.usage)


CHAIN = workflow(("a", "look", ()), ("b", "join", (0,)), ("b", "tell", (1,)))


def without_looks(request: Request) -> str | Exception:
    """A reply as of `told`, but for the subtask `look`, which fails."""
    return down(request) if subtask_of(request) == "look" else told(request)


async def with_failure() -> Trace:
    """A run of `CHAIN` in which the first step failed."""
    unlucky = Conductor(ScriptedModel([]), pool_of(a=without_looks, b=without_looks), access="positional")
    trace = await unlucky.run("q", workflow=CHAIN)
    assert [result.status for result in trace.results] == ["failed", "ok", "ok"]
    return trace


async def test_a_failed_step_stays_failed_when_all_that_read_it_is_done() -> None:
    whole = await with_failure()
    for done, subtasks in ({0, 1, 2}, []), ({0, 1}, ["tell"]):
        resumed, events = conductor(), list[Event]()
        trace = await resumed.run("q", resume=[cut(whole.rounds[0], done)], on_event=events.append)
        assert leftover_tasks() == set()
        assert asked(resumed) == subtasks
        assert trace.results[:2] == whole.results[:2]
        assert trace.usage == whole.usage
        assert finished(events) == [0, 1, 2]
        assert isinstance(events[-1], Finished)


async def test_a_failed_step_is_tried_again_if_a_step_that_reads_it_has_to_run() -> None:
    whole = await with_failure()
    resumed = conductor()
    trace = await resumed.run("q", resume=[cut(whole.rounds[0], {0})])
    assert trace.text == "tell(join(look()))"
    assert asked(resumed) == ["look", "join", "tell"]


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


async def test_rounds_that_are_done_are_kept_even_if_limits_allow_fewer() -> None:
    made = Conductor(ScriptedModel([plan((0, "draft", [])), plan((1, "tell", []))]), pool_of(a=told, b=told))
    whole = await made.run("q", limits=Limits(rounds=2))
    resumed = conductor()
    trace = await resumed.run("q", resume=whole.rounds, limits=Limits(rounds=1))
    assert (trace.text, trace.answer, trace.usage) == (whole.text, whole.answer, whole.usage)
    assert asked(resumed) == []


async def test_a_planning_that_was_cut_short_stays_in_the_trace_if_limits_allow_no_further_round() -> None:
    first = await Conductor(ScriptedModel([plan((0, "draft", []))]), pool_of(a=told)).run("q")
    stuck = Gated("never", forever)
    begun = await cut_short(
        Conductor(stuck, pool_of(a=told)), stuck, resume=[*first.rounds, UNPLANNED], limits=Limits(rounds=2)
    )
    resumed = await conductor().run("q", resume=begun.rounds, limits=Limits(rounds=1))
    assert (resumed.text, resumed.usage) == ("draft()", begun.usage)
    assert [call.outcome for call in resumed.calls] == ["ok", "ok", "cancelled"]


async def test_a_trace_in_place_of_its_rounds_is_refused_with_what_to_write() -> None:
    trace: Any = await conductor().run("q", workflow=DIAMOND)
    with pytest.raises(ConfigError, match=r"write resume=trace\.rounds"):
        await conductor().run("q", resume=trace)


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
    space = draw(
        spaces().map(lambda space: space.model_copy(update={"last_reads_all": False, "recallable": None, "inputs": ()}))
    )
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


# --------------------------------------------------------------------------- attempts that come to nothing


async def trace_of(one: Conductor, **options: Any) -> Trace:
    """The trace that a listener gets of a run that raises an error, or that is cancelled once it waits for a model."""
    events: list[Event] = []
    with pytest.raises(ConductorError):
        await one.run("q", on_event=events.append, **options)
    assert isinstance(events[-1], Finished)
    return events[-1].trace


async def cut_short(one: Conductor, stuck: Gated, **options: Any) -> Trace:
    """The trace of a run that is cancelled once `stuck` is asked."""
    events: list[Event] = []
    running = asyncio.create_task(one.run(on_event=events.append, **{"question": "q", **options}))
    await stuck.asked.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert isinstance(events[-1], Finished)
    return events[-1].trace


async def test_a_refused_resumption_loses_nothing() -> None:
    whole = await conductor().run("q", workflow=DIAMOND)
    trace = await trace_of(conductor(), resume=whole.rounds, policy=Policy(deny=frozenset({"b"})))
    assert trace.rounds == whole.rounds
    assert trace.answer is None


async def test_a_resumption_that_the_planner_may_not_see_loses_nothing() -> None:
    stuck = Gated("never", forever)
    inside = {name: worker(name, told, tags=frozenset({"inside"})) for name in ("a", "b")}
    begun = await cut_short(Conductor(stuck, pool_of(**inside)), stuck)
    assert begun.usage.calls == 1
    rule = Policy(data_class="patients", data_rules={"patients": DataRule(tags=frozenset({"inside"}))})
    trace = await trace_of(Conductor(ScriptedModel([]), pool_of(**inside)), resume=begun.rounds, policy=rule)
    assert trace.rounds == begun.rounds


async def test_a_guardrail_that_is_down_when_a_run_is_resumed_takes_nothing_from_it() -> None:
    async def check(_: Content) -> Verdict:
        if is_down:
            raise RuntimeError("down")
        return Allow()

    guardrails = [Check(stages=("input",), verdict=check)]
    whole = await conductor().run("q", workflow=DIAMOND)
    is_down = True
    trace = await trace_of(conductor(guardrails=guardrails), resume=[cut(whole.rounds[0], {0, 1})])
    assert [[result.status for result in one.results] for one in trace.rounds] == [["ok", "ok"]]
    assert [check.outcome for check in trace.checks] == ["failed"]
    is_down = False
    resumed = conductor(guardrails=guardrails)
    again = await resumed.run("q", resume=trace.rounds)
    assert (again.text, asked(resumed)) == (whole.text, ["join", "tell"])
    assert [check.outcome for check in again.checks] == ["allowed", "failed"]


async def test_a_continuation_that_is_cut_short_twice_keeps_all_calls() -> None:
    request, rounds = bringing("b"), tuple[Round, ...]()
    for calls in (1, 2):
        stuck = Gated("never", forever)
        trace = await cut_short(Conductor(ScriptedModel([]), pool_of(b=stuck)), stuck, question=request, resume=rounds)
        rounds = trace.rounds
        assert (rounds[0].plan.source, trace.usage.calls) == ("continuation", calls)
    whole = await Conductor(ScriptedModel([]), pool_of(b="B")).run(request, resume=rounds)
    assert [call.outcome for call in whole.calls] == ["cancelled", "cancelled", "ok"]


async def test_calls_of_a_planning_that_was_cut_short_are_kept_beside_a_workflow_of_ones_own() -> None:
    stuck = Gated("never", forever)
    begun = await cut_short(Conductor(stuck, pool_of(a=told)), stuck)
    trace = await conductor().run("q", workflow=workflow(("a", "x", ())), resume=begun.rounds)
    assert trace.rounds[0].plan.source == "given"
    assert [call.outcome for call in trace.calls] == ["cancelled", "ok"]


# ---------------------------------------------------------------------------------------- stepwise


async def run_stepwise(steps: Stepwise) -> list[StepResult]:
    """Runs the steps in their order, and stores each result as text, as a host does."""
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
    assert not steps.may_continue


async def test_another_round_follows_while_limits_and_policy_allow() -> None:
    planner = ScriptedModel([plan((0, "draft", [])), ACCEPT])
    one = Conductor(planner, pool_of(a=told), limits=Limits(rounds=2))
    first = one.stepwise("q", await one.plan("q"))
    trace = first.finish(await run_stepwise(first))
    assert first.may_continue
    record = await one.plan("q", previous_rounds=trace.rounds)
    assert record.workflow is None, "the answer of the round before was accepted"
    with pytest.raises(ConfigError, match="not None first"):
        one.stepwise("q", record, previous_rounds=trace.rounds)


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


class Pausing(ScriptedModel):
    """A scripted model that pauses in its first call, after two calls of its own."""

    pauses = 1

    async def complete(self, request: Request) -> Completion:
        """Pauses, or returns the reply."""
        if not self.pauses:
            return await super().complete(request)
        self.pauses -= 1
        pause = PauseSignal()
        pause.usage = Usage(input_tokens=10, calls=2)
        raise pause


async def paused(one: Conductor) -> list[Call]:
    """Runs a step until it pauses, and returns its calls."""
    calls: list[Call] = []
    with pytest.raises(PauseSignal):
        await one.stepwise("q", DIAMOND).step(0, calls=calls)
    return calls


async def test_calls_before_a_pause_are_in_the_result_of_the_step_and_charged_when_it_goes_on() -> None:
    one = Conductor(ScriptedModel([]), pool_of(a=Pausing(told), b=told), limits=Limits(calls=3))
    calls = await paused(one)
    assert [(call.outcome, call.usage.calls) for call in calls] == [("paused", 2)]
    poor = await one.stepwise("q", DIAMOND, limits=Limits(calls=2)).step(0, calls=[*calls])
    assert "limits.calls=2" in str(poor.error)
    result = await one.stepwise("q", DIAMOND).step(0, calls=calls)
    assert (result.status, [call.outcome for call in result.calls]) == ("ok", ["paused", "ok"])


async def test_a_pause_without_any_calls_is_neither_recorded_nor_charged() -> None:
    class Waiting(ScriptedModel):
        async def complete(self, request: Request) -> Completion:
            raise PauseSignal

    one = Conductor(ScriptedModel([]), pool_of(a=Waiting(told), b=told), access="positional", limits=Limits(calls=1))
    steps, calls = one.stepwise("q", DIAMOND), list[Call]()
    with pytest.raises(PauseSignal):
        await steps.step(0, calls=calls)
    assert calls == []
    assert (await steps.step(1)).status == "ok"


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


async def test_a_host_that_continues_after_tool_calls_keeps_what_led_to_it() -> None:
    judge = ScriptedModel("fine")

    async def check(content: Content) -> Verdict:
        await content.call(judge, Request.user("Is it fine?"))
        return Allow()

    request = bringing("b")
    one = Conductor(ScriptedModel([]), pool_of(b="B"), guardrails=[Check(stages=("input",), verdict=check)])
    record = await one.plan(request)
    steps = one.stepwise(request, record)
    trace = steps.finish(await run_stepwise(steps))
    assert len(judge.requests) == 2, "for the plan, and where its steps run"
    assert (trace.usage.calls, len(trace.checks)) == (3, 2)


async def test_a_host_can_not_run_what_a_forged_continuation_names() -> None:
    forged = PlanRecord(source="continuation", workflow=workflow(("bad", "x", ())))
    denied = ScriptedModel("never")
    one = Conductor(ScriptedModel([]), pool_of(bad=denied, b="B"), policy=Policy(deny=frozenset({"bad"})))
    for request in (bringing("bad"), Request.user("q")):
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


# ---------------------------------------------------------------------------------- today's policy

DENIED = Policy(deny=frozenset({"bad"}))


def planned(*steps: tuple[int, str, list[object]]) -> ScriptedModel:
    return ScriptedModel([plan(*steps)])


def over(planner: ScriptedModel, **options: object) -> Conductor:
    """A conductor over `bad`, which is denied later, and two others."""
    workers = pool_of(bad=options.pop("bad", told), a=told, b=told)
    return Conductor(planner, workers, access="positional", **options)  # type: ignore[arg-type]


def shown(one: Conductor) -> str:
    """Everything that any model was shown."""
    models = [one.planner.model, *(worker.model for worker in one.pool.values())]
    return str([model.requests for model in models if isinstance(model, ScriptedModel)])


async def test_a_plan_of_a_worker_that_is_denied_today_is_made_again() -> None:
    first = await over(planned((0, "look", []), (1, "tell", [0])), bad="forbidden").run("q")
    resumed = over(planned((1, "find", []), (2, "say", [0])))
    trace = await resumed.run("q", resume=first.rounds, policy=DENIED)
    assert trace.text == "say(find())"
    assert "forbidden" not in shown(resumed)
    assert "'bad': policy.deny names it" in trace.rounds[0].plan.errors[0]
    assert trace.usage.calls == 3 + 3, "what the first attempt used is counted"


async def test_the_reply_of_a_denied_replacement_is_made_again_by_the_planned_worker() -> None:
    def replaced() -> Conductor:
        return Conductor(ScriptedModel([]), pool_of(a=down, bad="forbidden", b=told), access="positional")

    given = workflow(("a", "look", ()), ("b", "tell", (0,)))
    first = await replaced().run("q", workflow=given)
    assert first.rounds[0].results[0].step.worker == "bad"
    resumed = over(ScriptedModel([]))
    trace = await resumed.run("q", resume=first.rounds, policy=DENIED)
    assert trace.text == "tell(look())", "what was made from the denied reply is made again, too"
    assert "forbidden" not in shown(resumed)
    assert "step 1 runs again" in trace.rounds[0].plan.errors[0]
    assert "policy.deny names it" in trace.rounds[0].plan.errors[0]
    assert "made from the reply of step 1" in trace.rounds[0].plan.errors[1]
    with pytest.raises(WorkflowValidationError, match=r"'b': policy\.deny names it"):  # a plan of the caller's own
        await resumed.run("q", resume=first.rounds, policy=Policy(deny=frozenset({"b", "bad"})))


async def test_a_reply_is_not_shown_to_who_may_not_read_it_today() -> None:
    first = await Conductor(ScriptedModel([]), pool_of(a=down, bad="forbidden", b=told), access="positional").run(
        "q", workflow=workflow(("a", "look", ()), ("b", "tell", (0,)))
    )
    resumed = over(ScriptedModel([]))
    rule = Policy(forbid=(Flow(reader="b", source="bad"),))
    trace = await resumed.run("q", resume=[cut(first.rounds[0], {0})], policy=rule)
    assert trace.text == "tell(look())"
    assert "nothing from 'bad' may reach 'b'; policy.forbid" in trace.rounds[0].plan.errors[0]


async def test_data_that_a_worker_may_not_see_today_is_kept_from_it_and_its_replies_are_dropped() -> None:
    inside = Policy(data_class="patients", data_rules={"patients": DataRule(tags=frozenset({"inside"}))})
    workers = {"a": worker("a", told, tags=frozenset({"inside"})), "out": worker("out", "forbidden")}
    first = await Conductor(planned((1, "tell", [])), pool_of(**workers)).run("q")
    assert first.text == "forbidden"
    planner = Planner(model=planned((0, "tell", [])), card=Card(name="planner", tags=frozenset({"inside"})))
    trace = await Conductor(planner, pool_of(**workers)).run("q", resume=first.rounds, policy=inside)
    assert trace.text == "tell()"
    assert "'out': data of class 'patients' needs a worker tagged inside" in trace.rounds[0].plan.errors[0]


async def test_an_answer_must_come_from_who_has_to_give_it_today() -> None:
    first = await over(planned((1, "tell", []))).run("q")
    trace = await over(planned((2, "say", []))).run("q", resume=first.rounds, policy=Policy(final="b"))
    assert trace.text == "say()"
    assert "must be done by 'b'" in trace.rounds[0].plan.errors[0]


async def test_a_worker_that_is_gone_from_the_pool_is_replaced() -> None:
    first = await over(planned((0, "tell", [])), bad="forbidden").run("q")
    trace = await Conductor(planned((0, "say", [])), pool_of(a=told)).run("q", resume=first.rounds)
    assert trace.text == "say()"
    assert "there is no worker 'bad'" in trace.rounds[0].plan.errors[0]


async def test_rounds_after_a_reply_that_is_denied_today_are_made_again() -> None:
    plans = [plan((0, "draft", [])), plan((1, "improve", [])), ACCEPT]
    first = await over(ScriptedModel(plans), bad="forbidden", limits=Limits(rounds=3)).run("q")
    assert [len(one.results) for one in first.rounds] == [1, 1, 0]
    resumed = over(ScriptedModel([plan((1, "start", [])), ACCEPT]), limits=Limits(rounds=3))
    trace = await resumed.run("q", resume=first.rounds, policy=DENIED)
    assert trace.text == "start()"
    assert "forbidden" not in shown(resumed)
    assert "what followed round 1 is dropped" in trace.rounds[0].plan.errors[0]
    assert trace.usage.calls == first.usage.calls + 3


async def test_rounds_after_a_reply_that_the_planner_may_not_read_today_are_dropped_and_the_answer_stands() -> None:
    plans = [plan((0, "draft", [])), plan((1, "improve", [])), ACCEPT]
    first = await over(ScriptedModel(plans), limits=Limits(rounds=3)).run("q")
    resumed = over(ScriptedModel([]), limits=Limits(rounds=3))
    rule = Policy(forbid=(Flow(reader="planner", source="bad"),))
    trace = await resumed.run("q", resume=first.rounds, policy=rule)
    assert (trace.text, len(trace.rounds)) == ("draft()", 1)
    assert "policy.forbid keeps its replies from the planner" in trace.rounds[0].plan.errors[0]


async def test_nothing_is_dropped_where_the_policy_allows_what_was_done() -> None:
    plans = [plan((0, "draft", [])), plan((1, "improve", [])), ACCEPT]
    first = await over(ScriptedModel(plans), limits=Limits(rounds=3)).run("q")
    rule = Policy(deny=frozenset({"b"}))
    trace = await over(ScriptedModel([]), limits=Limits(rounds=3)).run("q", resume=first.rounds, policy=rule)
    assert trace.rounds == first.rounds


async def test_results_of_another_plan_are_not_taken_for_those_of_this_one() -> None:
    whole = await conductor().run("q", workflow=DIAMOND)
    other = PlanRecord(source="given", workflow=workflow(("b", "tell", ())))
    trace = await conductor().run("q", resume=[Round(plan=other, results=whole.rounds[0].results)])
    assert trace.text == "tell()"
    assert "it belongs to another plan" in trace.rounds[0].plan.errors[0]


async def test_steps_run_one_by_one_refuse_a_reply_that_is_denied_today() -> None:
    first = over(ScriptedModel([]), bad="forbidden").stepwise("q", workflow(("a", "look", ()), ("b", "tell", (0,))))
    look = await first.step(0)
    replaced = look.model_copy(update={"step": look.step.model_copy(update={"worker": "bad"})})
    today = over(ScriptedModel([]))
    steps = today.stepwise("q", workflow(("a", "look", ()), ("b", "tell", (0,))), policy=DENIED)
    tell = await steps.step(1, [look])
    for use in (lambda: steps.finish([replaced, tell]), lambda: steps.has_answer([replaced, tell])):
        with pytest.raises(WorkflowValidationError, match=r"step 1 runs again.*'bad': policy\.deny names it"):
            use()
    with pytest.raises(WorkflowValidationError, match=r"policy\.deny names it"):
        await steps.step(1, [replaced])
    assert steps.finish([await steps.step(0), tell]).text == "tell(look())"


async def test_a_host_can_not_go_on_from_rounds_that_are_denied_today() -> None:
    one = over(planned((0, "draft", [])), bad="forbidden", limits=Limits(rounds=2))
    first = one.stepwise("q", await one.plan("q"))
    rounds = first.finish(await run_stepwise(first)).rounds
    with pytest.raises(WorkflowValidationError, match=r"'bad': policy\.deny names it"):
        await one.plan("q", previous_rounds=rounds, policy=DENIED)
    with pytest.raises(WorkflowValidationError, match=r"'bad': policy\.deny names it"):
        one.stepwise("q", workflow(("a", "tell", ())), previous_rounds=rounds, policy=DENIED)


async def test_tool_results_do_not_go_to_a_worker_whose_prompt_holds_a_reply_that_is_denied_today() -> None:
    call = Message.assistant(tool_calls=[ToolCall(id="c", name="look", arguments="{}")])
    steps = workflow(("bad", "find", ()), ("a", "read", (0,)), ("b", "ask", (1,)))
    first = await Conductor(
        ScriptedModel([]), pool_of(bad="forbidden", a=told, b=ScriptedModel([call])), access="positional"
    ).run(Request(messages=(Message.user("q"),), tools=(Tool(name="look"),)), workflow=steps)
    assert first.completion is not None
    left = first.completion.message.continuation
    assert left is not None
    assert left.sources == frozenset({"bad", "a"})
    turns = (Message.user("q"), first.completion.message, Message.tool("c", "found"))
    request = Request(messages=turns, tools=(Tool(name="look"),))

    allowed = over(ScriptedModel([]))
    assert (await allowed.run(request)).rounds[0].plan.source == "continuation"
    assert "forbidden" in shown(allowed)
    rules = (DENIED, "policy.deny names it"), (Policy(forbid=(Flow(reader="b", source="bad"),)), "policy.forbid")
    for policy, why in rules:
        today = over(planned((1, "start", [])))
        trace = await today.run(request, policy=policy)
        assert trace.rounds[0].plan.source == "planner"
        assert "forbidden" not in shown(today)
        assert why in trace.rounds[0].plan.errors[0]
        resumed = over(planned((1, "start", [])))
        before = (await over(ScriptedModel([])).run(request)).rounds
        assert (await resumed.run(request, resume=before, policy=policy)).text == "start()"
        with pytest.raises(WorkflowValidationError, match=why):
            today.stepwise(request, before[0].plan, policy=policy)
    gone = await Conductor(planned((0, "start", [])), pool_of(a=told, b=told)).run(request)
    assert "the pool has no worker 'bad'" in gone.rounds[0].plan.errors[0]


LOOK = Tool(name="look")
SECRETIVE = Policy(forbid=(Flow(reader="b", source="a"),))
"""Forbids `b` to read the replies of `a`."""


def calling(call_id: str) -> Message:
    return Message.assistant(tool_calls=[ToolCall(id=call_id, name="look", arguments="{}")])


def left(trace: Trace) -> Continuation:
    """The continuation in the answer of a run."""
    assert trace.completion is not None
    continuation = trace.completion.message.continuation
    assert continuation is not None
    return continuation


def brought(request: Request, trace: Trace, call_id: str) -> Request:
    """The request that brings the result of the tool call that ended a run."""
    assert trace.completion is not None
    return request.model_copy(
        update={"messages": (*request.messages, trace.completion.message, Message.tool(call_id, "found"))}
    )


async def test_a_second_tool_call_in_a_row_remembers_whose_replies_are_in_the_prompt() -> None:
    calls = ScriptedModel([calling("1"), calling("2"), "never"])
    steps = [plan((0, "find", []), (1, "ask", ["all"])), plan((1, "start", []))]
    one = Conductor(ScriptedModel(steps), pool_of(a="secret", b=calls))
    first = Request(messages=(Message.user("q"),), tools=(LOOK,))
    second = brought(first, await one.run(first), "1")
    again = await one.run(second)
    assert (again.rounds[0].plan.source, left(again).sources) == ("continuation", frozenset({"a"}))
    assert "secret" in str(calls.requests[1].messages)
    trace = await one.run(brought(second, again, "2"), policy=SECRETIVE)
    assert "policy.forbid keeps that from 'b'" in trace.rounds[0].plan.errors[0]
    assert "secret" not in str(calls.requests[2].messages)


async def test_a_tool_call_of_a_later_round_remembers_whose_replies_the_planner_may_have_quoted() -> None:
    calls = ScriptedModel([calling("1"), "never"])
    steps = [plan((0, "find", [])), plan((1, "check this: secret", [])), plan((1, "start", [])), ACCEPT]
    one = Conductor(ScriptedModel(steps), pool_of(a="secret", b=calls), limits=Limits(rounds=2))
    first = Request(messages=(Message.user("q"),), tools=(LOOK,))
    asked_for = await one.run(first)
    assert left(asked_for).sources == frozenset({"a"})
    assert "secret" in str(left(asked_for).prompt)
    trace = await one.run(brought(first, asked_for, "1"), policy=SECRETIVE)
    assert "policy.forbid keeps that from 'b'" in trace.rounds[0].plan.errors[0]
    assert "secret" not in str(calls.requests[1].messages)


# ------------------------------------------------------------------------------ a workflow to resume


async def test_a_workflow_beside_the_plan_of_the_run_to_resume_is_refused() -> None:
    whole = await conductor().run("q", workflow=DIAMOND)
    begun = [cut(whole.rounds[0], {0})]
    with pytest.raises(ConfigError, match="leave out workflow to go on with that plan, or leave out resume"):
        await conductor().run("q", workflow=workflow(("a", "x", ())), resume=begun)
    assert (await conductor().run("q", workflow=DIAMOND, resume=begun)).text == whole.text
    assert (await conductor().run("q", workflow=workflow(("a", "x", ())), resume=[UNPLANNED])).text == "x()"


async def test_a_workflow_whose_run_was_cut_short_in_a_later_round_is_not_run_again() -> None:
    given, limits = workflow(("a", "x", ())), Limits(rounds=2)
    first = await Conductor(ScriptedModel([ACCEPT]), pool_of(a=told), limits=limits).run("q", workflow=given)
    for rounds in ([*first.rounds[:1], UNPLANNED], first.rounds):
        again = Conductor(ScriptedModel([ACCEPT]), pool_of(a=told), limits=limits)
        trace = await again.run("q", workflow=given, resume=rounds)
        assert (trace.text, [one.plan.source for one in trace.rounds]) == ("x()", ["given", "planner"])
        assert asked(again) == []


async def test_a_resumed_run_counts_what_its_interrupted_call_may_have_cost() -> None:
    stuck = Gated("never", forever, price=Price(input=0, output=Decimal(1000)))
    pool = WorkerPool([Worker.of("w", stuck, sampling=Sampling(max_tokens=100))])
    limits = Limits(usd=Decimal("0.15"))
    made = Conductor(ScriptedModel(plan((0, "Do it.", [])), price=FREE), pool, limits=limits)
    trace = await cut_short(made, stuck)
    stored = Trace.model_validate_json(trace.model_dump_json())
    charged = stored.rounds[0].results[0].calls[0].charged
    assert charged is not None
    assert charged.usd == Decimal("0.1")
    with pytest.raises(RunError, match=r"limits\.usd=0\.15 leaves \$0\.05"):
        await made.run("q", resume=stored.rounds)
    assert stuck.held == 0


@pytest.mark.parametrize("kind", ["conductor", "function", "tools", "conductor in a tool"])
async def test_a_resumed_run_counts_what_interrupted_calls_inside_of_its_call_may_have_cost(kind: str) -> None:
    stuck = Gated("never", forever, price=Price(input=0, output=Decimal(1000)))
    few = Sampling(max_tokens=100)
    inner = conductor_of(Worker.of("w", stuck, sampling=few))

    async def ask(question: str) -> str:
        """Asks a team."""
        return (await inner.run(question)).text

    call = ToolCall(id="c", name="ask", arguments='{"question": "q"}')
    agent = ScriptedModel(lambda _: Message.assistant(tool_calls=[call]), price=FREE)
    delegating = {
        "conductor": Worker.of("w", inner, sampling=few),
        "function": Worker.of("w", ask),
        "tools": Worker.of("w", stuck, tools=[ask], sampling=few),
        "conductor in a tool": Worker.of("w", agent, tools=[ask]),
    }[kind]
    made = conductor_of(delegating, limits=Limits(usd=Decimal("0.15")))
    trace = await cut_short(made, stuck)
    charged = trace.rounds[0].results[0].calls[0].charged
    assert charged is not None
    assert charged.usd == Decimal("0.1")
    with pytest.raises(RunError) as refused:
        await asyncio.wait_for(made.run("q", resume=trace.rounds), SOON)
    assert "limits.usd=0.15 leaves $0.05" in refused.value.trace.model_dump_json()
    assert stuck.held == 0


def conductor_of(one: Worker, limits: Limits | None = None) -> Conductor:
    planner = ScriptedModel(lambda _: plan((0, "Do it.", [])), price=FREE)
    return Conductor(planner, WorkerPool([one]), limits=limits)
