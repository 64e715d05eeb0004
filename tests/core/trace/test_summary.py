"""The run in brief: the trace's own names and numbers, told alike while it goes on and when it is over."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from core.runs import down, plan, pool_of
from rl_conductor.conductor import Conductor
from rl_conductor.errors import RunError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.trace.events import Event, StepFinished
from rl_conductor.trace.summary import Summary, progress
from rl_conductor.trace.trace import Trace
from rl_conductor.types import total
from rl_conductor.workflow.limits import Limits

FIRST = plan((0, "look", []), (1, "count", []), (0, "join", ["all"]))
SECOND = plan((1, "say", []))


async def ran(**options: Any) -> tuple[Trace, list[Event]]:
    """A run of two rounds, and everything that happened in it."""
    events: list[Event] = []
    planner = ScriptedModel(["nonsense", FIRST, SECOND], name="planner")
    workers = pool_of(**{"a": "from a", "b": "from b"} | options)
    conductor = Conductor(planner, workers, limits=Limits(rounds=2), retries=0)
    try:
        trace = await conductor.run("Say something.", on_event=events.append)
    except RunError as error:
        trace = error.trace
    return trace, events


async def test_a_summary_names_and_counts_everything_as_its_trace_does() -> None:
    trace, _ = await ran()
    brief = Summary.of(trace)

    assert (brief.run, brief.planner, brief.answer) == (trace.id, trace.planner, trace.answer)
    assert trace.answer is not None
    answering = brief.rounds[trace.answer.round].steps[trace.answer.step]
    assert (answering.step, answering.worker, answering.model) == (trace.answer.step, "b", brief.model)
    for one, told in zip(trace.rounds, brief.rounds, strict=True):
        assert told.plan.source == one.plan.source
        assert [(s.step, s.worker, s.subtask, s.access, s.status) for s in told.steps] == [
            (r.index, r.step.worker, r.step.subtask, tuple(sorted(r.step.access)), r.status) for r in one.results
        ]
    assert brief.rounds[0].steps[2].access == (0, 1)
    assert brief.depth == 3


async def test_a_summary_tells_rejected_plans_and_what_was_changed_in_the_one_that_ran() -> None:
    six = plan(*((0, f"part {number}", []) for number in range(5)), (1, "Combine.", ["all"]))
    planner = Planner(model=ScriptedModel([six, six]), form="lists")
    trace = await Conductor(planner, pool_of(a="A", b="B")).run("Say something.")

    brief = Summary.of(trace).rounds[0].plan

    assert brief.errors == trace.rounds[0].plan.errors == ("the plan may not run: 6 steps, but 1 to 5 are allowed",)
    assert brief.repairs == ("a plan of 6 steps was shortened to 5", "steps 1, 2 were merged into one")
    assert trace.text == "B"


async def test_what_its_parts_used_adds_up_to_the_whole() -> None:
    trace, _ = await ran(a=down)
    brief = Summary.of(trace)

    parts = [used for one in brief.rounds for used in (one.plan.usage, *(step.usage for step in one.steps))]
    assert total(parts) == brief.usage == trace.usage
    assert total((brief.planning, *brief.workers.values())) == brief.usage


async def test_a_summary_of_a_run_without_an_answer_says_why() -> None:
    trace, _ = await ran(a=down, b=down)
    brief = Summary.of(trace)

    assert (brief.answer, brief.model) == (None, None)
    assert brief.error == trace.error
    assert "out of order" in str(brief.rounds[0].steps[0].error)
    assert brief.rounds[0].steps[0].status == "failed"


async def test_a_summary_travels_as_json() -> None:
    brief = Summary.of((await ran())[0])

    assert Summary.model_validate(brief.model_dump(mode="json")) == brief
    assert Summary.model_validate_json(brief.model_dump_json()) == brief


async def test_what_is_told_on_the_way_is_what_the_summary_says_in_the_end() -> None:
    trace, events = await ran()
    brief = Summary.of(trace).model_dump(mode="json")

    told = [said for event in events if (said := progress(event)) is not None]
    plans = [one for one in told if one["type"] == "workflow_planned"]
    for one, planned in zip(brief["rounds"], plans, strict=True):
        assert one["plan"] == planned["plan"]
        assert [{name: step[name] for name in planned["steps"][0]} for step in one["steps"]] == planned["steps"]
    ended = [one for one in told if one["type"] == "step_finished"]
    assert len(ended) == sum(isinstance(event, StepFinished) for event in events) == 4
    for one in ended:
        step = brief["rounds"][one["round"]]["steps"][one["step"]]
        assert one == {"type": "step_finished", "round": one["round"], **step}


async def test_what_begins_is_told_before_its_end_and_so_is_a_plan_that_is_thrown_away() -> None:
    _, events = await ran()
    told = [said for event in events if (said := progress(event)) is not None]

    assert (told[0]["type"], told[0]["round"]) == ("plan_rejected", 0)
    assert told[0]["error"]
    last = [one for one in told if one["round"] == 1]
    assert [one["type"] for one in last] == ["workflow_planned", "step_started", "step_finished"]
    assert all((one["step"], one["worker"]) == (0, "b") for one in last[1:])
    assert all(one["round"] <= another["round"] for one, another in pairwise(told))


@pytest.mark.parametrize("kind", ["plan_started", "plan_delta", "answer_delta", "finished"])
async def test_pieces_of_text_and_the_end_are_left_to_the_host(kind: str) -> None:
    _, events = await ran()
    (first, *_) = [event for event in events if event.type == kind]
    assert progress(first) is None
