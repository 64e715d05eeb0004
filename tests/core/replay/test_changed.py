"""Replays with one step changed: what runs again, what is reused, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from core.runs import plan, pool_of
from rl_conductor import Conductor, ConfigError, Policy, PolicyError, ScriptedModel, Trace
from rl_conductor.errors import BadRequestError, WorkflowValidationError
from rl_conductor.replay import StepChange, replay_changed
from rl_conductor.trace.events import Event, StepStarted
from rl_conductor.types import Request

PLAN = plan((0, "Draft it.", []), (1, "Draft it otherwise.", []), (0, "Join them.", ["all"]))


def conductor() -> Conductor:
    def reply(name: str) -> Any:
        return lambda request: f"{name}{len(request.messages[-1].text)}"

    return Conductor(ScriptedModel([PLAN]), pool_of(a=reply("a"), b=reply("b"), c=reply("c")))


async def run_again(change: StepChange, **options: Any) -> tuple[Trace, Trace, list[int]]:
    made, events = conductor(), list[Event]()
    original = Trace.model_validate_json((await made.run("What is it?")).model_dump_json())
    trace = await replay_changed(made, original, change, on_event=events.append, **options)
    return original, trace, [event.index for event in events if isinstance(event, StepStarted)]


async def test_only_the_changed_step_and_those_that_read_it_run_again() -> None:
    original, trace, ran = await run_again(StepChange(step=1, worker="c"))

    assert ran == [1, 2]
    assert [result.step.worker for result in trace.rounds[0].results] == ["a", "c", "a"]
    assert trace.rounds[0].results[0].reply == original.rounds[0].results[0].reply
    assert trace.usage.calls == 2, "the reused reply and the plan cost nothing"
    assert trace.text.startswith("a")
    assert trace.id != original.id


async def test_a_subtask_can_be_changed() -> None:
    _, trace, ran = await run_again(StepChange(step=2, subtask="Join them briefly."))
    assert ran == [2]
    assert trace.rounds[0].results[2].step.subtask == "Join them briefly."


async def test_the_policy_of_the_original_run_holds_unless_another_one_is_given() -> None:
    made = conductor()
    original = await made.run("What is it?", policy=Policy(deny={"c"}))
    with pytest.raises((WorkflowValidationError, PolicyError), match="'c'"):
        await replay_changed(made, original, StepChange(step=1, worker="c"))

    trace = await replay_changed(made, original, StepChange(step=1, worker="c"), policy=Policy())
    assert trace.rounds[0].results[1].step.worker == "c"


async def test_an_unknown_worker_is_refused_before_anything_runs() -> None:
    made = conductor()
    original = await made.run("What is it?")
    calls = len(made.planner.model.requests)  # type: ignore[attr-defined]
    with pytest.raises(WorkflowValidationError, match="'nobody'"):
        await replay_changed(made, original, StepChange(step=1, worker="nobody"))
    assert len(made.planner.model.requests) == calls  # type: ignore[attr-defined]


@pytest.mark.parametrize("change", [StepChange(step=3), StepChange(round=1, step=0)])
async def test_a_step_that_the_trace_lacks_is_refused(change: StepChange) -> None:
    with pytest.raises(ConfigError, match=f"no step {change.step} of round {change.round} that can be changed"):
        await run_again(change)


async def test_unchanged_steps_are_not_called() -> None:
    def fail(_: Request) -> str:
        raise AssertionError("called again")

    made = conductor()
    original = await made.run("What is it?")
    other = Conductor(ScriptedModel([]), pool_of(a="a", b=fail, c="from c"))
    trace = await replay_changed(other, original, StepChange(step=2, worker="c"))
    assert trace.text == "from c"


async def test_a_failed_step_that_nothing_has_to_read_again_keeps_its_error() -> None:
    def reply(request: Request) -> str:
        if "Draft it." in request.messages[-1].text.splitlines():
            raise BadRequestError("no draft", model="a")
        return "fine"

    steps = plan((0, "Draft it.", []), (0, "Go on.", [0]), (0, "Finish.", [1]))
    made = Conductor(ScriptedModel(steps), pool_of(a=reply, b=reply), access="positional")
    original = await made.run("What is it?")
    trace = await replay_changed(made, original, StepChange(step=2, worker="b"))
    assert [result.status for result in trace.results] == ["failed", "ok", "ok"]
    assert trace.results[0].error == original.results[0].error
    assert trace.usage.calls == 1

    trace = await replay_changed(made, original, StepChange(step=1, worker="b"))
    assert trace.usage.calls == 4, "the changed step reads the failed one, which both workers try again"
