"""The run as data: JSON both ways, sums that add up, nothing secret."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from core.runs import down, plan, pool_of, worker, workflow
from rl_conductor.conductor import Conductor
from rl_conductor.errors import RunError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.trace.events import Event
from rl_conductor.trace.routing_decision import RoutingDecision
from rl_conductor.trace.trace import Call, PlanRecord, Round, StepResult, Trace
from rl_conductor.types import Completion, JsonFormat, Message, Price, Request, Usage, total
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import DataRule, Flow, Policy
from rl_conductor.workflow.workflow import Step

EVENTS = TypeAdapter[Event](Event)
CENT = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))
PLAN = plan((0, "x", []), (1, "y", []), (0, "join", ["all"]))


def priced(name: str, script: Any = "ok", **options: Any) -> ScriptedModel:
    return ScriptedModel(script, name=name, price=CENT, **options)


async def traced(**options: Any) -> tuple[Trace, list[Event]]:
    events: list[Event] = []
    pool = WorkerPool(
        [worker("a", priced("a")), worker("b", priced("b", down)), worker("c", priced("c"), tags={"x"}, accuracy=1)]
    )
    conductor = Conductor(Planner(model=priced("p", ["garbage", PLAN])), pool, **options)
    return await conductor.run("What is it?", on_event=events.append), events


async def test_a_trace_and_its_events_travel_as_json() -> None:
    policy = Policy(
        forbid=(Flow(reader="a", source="tag:x"),),
        data_class="d",
        data_rules={"d": DataRule()},
        deny=frozenset({"tag:x"}),
    )
    trace, events = await traced(policy=policy, limits=Limits(usd=Decimal("0.5"), seconds=60))

    assert Trace.model_validate_json(trace.model_dump_json()) == trace
    assert Trace.model_validate_json(trace.model_dump_json()).model_dump_json() == trace.model_dump_json()
    assert Trace.model_validate(trace.model_dump(mode="json")) == trace
    assert not trace.used_fallback
    for event in events:
        assert EVENTS.validate_json(EVENTS.dump_json(event)) == event


async def test_what_is_no_trace_is_refused() -> None:
    trace, _ = await traced()
    data = json.loads(trace.model_dump_json())
    with pytest.raises(ValidationError):
        Trace.model_validate({**data, "surprise": 1})


async def test_usage_adds_up_over_all_calls() -> None:
    trace, _ = await traced()

    assert trace.usage == total(call.usage for call in trace.calls)
    assert trace.completion is not None
    assert trace.completion.usage == trace.usage
    assert trace.usage.calls == 6  # two samples, two steps, one worker that failed and its replacement
    assert trace.usage.cost == Decimal("0.05")
    assert trace.usage.unpriced_calls == 1  # nobody knows whether the failed one was billed
    assert trace.planning.calls == 2


async def test_what_each_worker_used_adds_up_with_planning_to_the_whole() -> None:
    trace, _ = await traced()

    by_worker = trace.usage_by_worker

    assert {name: usage.calls for name, usage in by_worker.items()} == {"a": 2, "b": 1, "c": 1}
    assert list(by_worker) == ["a", "b", "c"]
    assert total(by_worker.values()) + trace.planning == trace.usage


async def test_the_results_of_all_rounds_are_told_in_order() -> None:
    trace, _ = await traced()

    assert [result.step.subtask for result in trace.results] == ["x", "y", "join"]


async def test_the_calls_for_the_answer_are_those_of_the_last_step_or_of_all_workers_if_it_made_none() -> None:
    trace, _ = await traced()
    assert trace.answer_calls == trace.results[-1].calls

    round_ = trace.rounds[0]
    last = round_.results[-1].model_copy(update={"calls": ()})
    stopped = trace.model_copy(
        update={"rounds": (round_.model_copy(update={"results": (*round_.results[:-1], last)}),)}
    )
    assert [call.worker for call in stopped.answer_calls] == ["a", "b", "c"]
    assert trace.model_copy(update={"rounds": ()}).answer_calls == ()


async def test_the_usage_of_the_steps_and_of_planning_adds_up() -> None:
    trace, _ = await traced()
    assert [result.usage.calls for result in trace.results] == [1, 2, 1]  # the second one's worker was replaced
    assert total(result.usage for result in trace.results) + trace.planning == trace.usage


async def test_a_round_without_usage_keeps_everything_else() -> None:
    trace, _ = await traced()
    (round_,) = trace.rounds
    unpaid = round_.without_usage()

    assert round_.calls
    assert total(call.usage for call in unpaid.calls) == Usage()
    assert [call.completion for call in unpaid.calls] == [call.completion for call in round_.calls]
    assert (unpaid.workflow, unpaid.plan.text) == (round_.workflow, round_.plan.text)


def test_a_plan_is_complete_once_it_has_a_workflow_or_a_text_or_the_planner_gave_up() -> None:
    records = [
        PlanRecord(source="planner"),
        PlanRecord(source="planner", text=PLAN),
        PlanRecord(source="given", workflow=workflow(("a", "x", []))),
        PlanRecord(source="fallback"),
    ]
    assert [record.is_complete for record in records] == [False, True, True, True]


class Keyed(ScriptedModel):
    """A model that holds a key, as adapters do."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.api_key = self._key = "sk-very-secret"


async def test_no_key_of_a_model_is_in_the_trace() -> None:
    pool = WorkerPool([worker("a", Keyed(down)), worker("b", Keyed("ok"))])
    events: list[Event] = []
    trace = await Conductor(Keyed([PLAN]), pool).run("What is it?", on_event=events.append)

    told = trace.model_dump_json() + repr(trace) + "".join(map(repr, events)) + repr(pool["a"])
    assert "sk-very-secret" not in told


async def test_without_prompts_the_trace_holds_question_plan_and_replies_and_nothing_that_was_made_of_them() -> None:
    full, _ = await traced()
    trace, _ = await traced(keep_prompts=False)

    assert all(call.request is None and len(call.fingerprint or "") == 64 for call in trace.calls)
    assert (trace.request, trace.completion, trace.rounds[0].plan.workflow) == (
        full.request,
        full.completion,
        full.rounds[0].plan.workflow,
    )
    assert [call.completion for call in trace.calls] == [call.completion for call in full.calls]


async def test_the_text_of_a_trace_is_the_answers() -> None:
    trace, _ = await traced()

    assert trace.text == "ok"
    assert trace.model_copy(update={"completion": None}).text == ""


# ----------------------------------------------------------------------------------- critical path


def call(seconds: float, *, by: str | None = None) -> Call:
    return Call(model="m", worker=by, started=0.0, seconds=seconds)


def done(index: int, reads: set[int], seconds: float) -> StepResult:
    step = Step(subtask="x", worker="w", access=frozenset(reads))
    return StepResult(index=index, step=step, planned_worker="w", status="ok", seconds=seconds)


async def test_the_critical_path_is_planning_and_the_longest_chain_of_every_round() -> None:
    trace, _ = await traced()
    diamond = Round(
        plan=PlanRecord(source="planner", calls=(call(1), call(2), call(99, by="dropped"))),
        results=(done(0, set(), 3), done(1, set(), 5), done(2, {0, 1}, 7), done(3, {0}, 11)),
    )
    accepted = Round(plan=PlanRecord(source="planner", calls=(call(4),)))

    rounds = trace.model_copy(update={"rounds": (diamond, accepted)})

    assert rounds.critical_path == 1 + 2 + 3 + 11 + 4
    assert accepted.workflow is None


async def test_latency_takes_cached_calls_for_as_long_as_they_first_took() -> None:
    trace, _ = await traced()
    kept = call(1).model_copy(update={"usage": Usage(calls=1, cached_calls=1, cached_seconds=60)})
    of_two = call(5).model_copy(update={"usage": Usage(calls=2, cached_calls=1, cached_seconds=4)})
    steps = (
        done(0, set(), 0).model_copy(update={"calls": (call(2), kept)}),
        done(1, {0}, 0).model_copy(update={"calls": (of_two,)}),
        done(2, {1}, 0).model_copy(update={"calls": (call(3),)}),
    )

    again = trace.model_copy(
        update={"rounds": (Round(plan=PlanRecord(source="planner", calls=(kept,)), results=steps),)}
    )

    assert again.latency == 61 + (2 + 61) + (5 + 4) + 3


async def test_the_critical_path_of_a_run_is_about_its_wall_time() -> None:
    slow = ScriptedModel("ok", delay=0.02)
    flow = workflow(("a", "x", ()), ("a", "y", ()), ("a", "z", (0, 1)))

    trace = await Conductor(ScriptedModel([]), pool_of(a=slow)).run("What is it?", workflow=flow)

    assert 0.04 <= trace.critical_path <= trace.seconds


# ------------------------------------------------------------------------------------------ details


async def test_a_step_without_a_reply_has_no_text() -> None:
    assert done(0, set(), 1).text == ""


async def test_a_run_without_an_answer_keeps_the_reply_that_was_rejected() -> None:
    question = Request(messages=(Message.user("x"),), response_format=JsonFormat(name="x", json_schema={}))
    pool = pool_of(a=ScriptedModel(["No.", "{}"], name="a"))
    conductor = Conductor(ScriptedModel([]), pool, retries=0)
    flow = workflow(("a", "x", ()))

    with pytest.raises(RunError) as raised:
        await conductor.run(question, workflow=flow)
    answered = await conductor.run(question, workflow=flow)

    failed = raised.value.trace
    assert failed.rejected is not None
    assert (failed.rejected.text, failed.rejected.usage) == ("No.", failed.usage)
    assert answered.rejected is None


texts = st.text(max_size=20)


@given(question=texts.filter(lambda text: bool(text.strip())), reply=texts.filter(lambda text: bool(text.strip())))
@settings(max_examples=60, deadline=None)
def test_whatever_is_asked_and_replied_the_trace_travels(question: str, reply: str) -> None:
    def says(_: Request) -> Completion:
        return Completion(message=Message.assistant(reply), usage=Usage(calls=1), model="m")

    flow = workflow(("a", "x", ()), ("a", "y", (0,)))
    conductor = Conductor(ScriptedModel([]), pool_of(a=says))

    trace = asyncio.run(conductor.run(question, workflow=flow))

    assert Trace.model_validate_json(trace.model_dump_json()) == trace


def test_a_routing_decision_says_what_decided() -> None:
    told: dict[str, Any] = {"worker": "small", "threshold": 0.5, "classifier": "0123456789abcdef"}
    beyond = RoutingDecision(route="conductor", probability=None, reason="it is too long", **told)
    unsure = RoutingDecision(route="conductor", probability=0.25, **told)
    simple = RoutingDecision(route="single", probability=0.75, **told)

    assert beyond.in_words == "planned: it is too long (router 0123456789ab)"
    assert unsure.in_words == "planned: right with probability 0.250, below 0.500 (router 0123456789ab)"
    assert simple.in_words == "one call of small: right with probability 0.750, from 0.500 (router 0123456789ab)"
