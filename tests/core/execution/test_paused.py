"""An agent that waits for a person ends the run: it is not retried, and no other worker takes its step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core.runs import SOON, Gated, forever, plan, pool_of, worker
from rl_conductor import Conductor, Limits, Request, RunError, ScriptedModel
from rl_conductor.errors import PausedError

ONE = plan((0, "Ask.", []))
TWO = plan((0, "Ask.", []), (1, "Tell.", ["all"]))
PARALLEL = plan((0, "Ask.", []), (1, "Look.", []), (1, "Tell.", ["all"]))
ERROR = "there is no answer: step 1: asks: agent paused"


def pause(_: Request) -> Exception:
    return PausedError("agent paused", model="agent")


def conductor(text: str, asks: Any, other: Any, **options: Any) -> Conductor:
    return Conductor(ScriptedModel(text), pool_of(asks=asks, other=other), **options)


@pytest.mark.parametrize("text", [ONE, TWO])
async def test_no_other_worker_answers(text: str) -> None:
    asks, other = ScriptedModel(pause), ScriptedModel("An answer.")
    with pytest.raises(RunError) as caught:
        await conductor(text, asks, other).run("q")
    assert str(caught.value) == ERROR
    assert (len(asks.requests), len(other.requests)) == (1, 0)
    trace = caught.value.trace
    assert (trace.completion, trace.error) == (None, "step 1: asks: agent paused")
    assert [call.outcome for call in trace.rounds[0].results[0].calls] == ["error"]


async def test_steps_beside_it_are_cancelled() -> None:
    other = Gated("Seen.", forever, name="other")
    asks = Gated(pause, lambda _: other.asked.wait(), name="asks")
    with pytest.raises(RunError, match=ERROR) as caught:
        await asyncio.wait_for(conductor(PARALLEL, asks, other).run("q"), SOON)
    assert caught.value.trace.rounds[0].results[1].error == "cancelled"


async def test_a_hedged_call_of_another_worker_does_not_answer_for_it() -> None:
    other = Gated("An answer.", forever, name="other")
    asks = Gated(pause, lambda _: other.asked.wait(), name="asks")
    hedged = worker("asks", asks, hedge_after=0.001)
    with pytest.raises(RunError, match=ERROR):
        await asyncio.wait_for(conductor(ONE, hedged, other, limits=Limits(hedges=1)).run("q"), SOON)


async def test_a_run_around_its_run_ends_as_well() -> None:
    inner = conductor(ONE, pause, "An answer.")
    outer = Conductor(ScriptedModel(ONE), pool_of(team=inner, other="An answer."))
    with pytest.raises(RunError, match=f"there is no answer: step 1: team: {ERROR}"):
        await outer.run("q")


async def test_a_planner_that_waits_for_a_person_ends_the_run() -> None:
    planner = ScriptedModel(pause)
    with pytest.raises(RunError, match="there is no answer: agent paused"):
        await Conductor(planner, pool_of(a="An answer.", b="An answer.")).run("q")
    assert len(planner.requests) == 1


async def test_a_step_that_runs_alone_ends_its_run_as_well() -> None:
    other = ScriptedModel("An answer.")
    alone = conductor(TWO, pause, other)
    stepwise = alone.stepwise("q", await alone.plan("q"))
    with pytest.raises(RunError, match=ERROR) as caught:
        await stepwise.step(0)
    assert caught.value.ends_run
    assert [result.status for result in caught.value.trace.rounds[0].results] == ["failed", "skipped"]
    assert not other.requests
