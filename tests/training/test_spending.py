"""Runs that a cap of a learning or training run ended, and those that ended by themselves."""

from __future__ import annotations

import time

import pytest

from rl_conductor import Conductor, Limits, RunError, ScriptedModel, WorkerPool
from rl_conductor.calls.budget import Budget
from rl_conductor.calls.scope import call_scope
from rl_conductor.models.scripted import ALL
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.trace.trace import Trace
from rl_conductor.workflow.workflow import Step, Workflow
from rl_conductor_training.spending import was_limited
from training.learn.skills import build_planner

SOON, LATER = 0.1, 60.0
STEP = Step(subtask="Measure it.", worker="worker")
CHAIN = Workflow(steps=(STEP, STEP.model_copy(update={"access": frozenset({0})})))


def shared_budget(seconds: float) -> Budget:
    budget = Budget(Limits(seconds=seconds), surrounds_runs=True)
    budget.deadline = time.monotonic() + seconds
    return budget


async def ask(model: ScriptedModel, budget: Budget, limits: Limits | None = None) -> Trace:
    """Asks one worker within a shared budget, and within limits of the conductor's own."""
    conductor = Conductor(build_planner(), WorkerPool({"worker": model}), limits=limits or Limits())
    conductor = conductor.replaced(selector=WorkflowSelector(workflows=(CHAIN,)))
    with call_scope(budget):
        try:
            return await conductor.run("How far is it from Oslo to Rome?")
        except RunError as error:
            return error.trace


@pytest.mark.parametrize(("shared", "own", "limited"), [(SOON, None, True), (LATER, SOON, False)])
async def test_time_that_is_over_counts_if_it_is_that_of_all_runs(
    shared: float, own: float | None, limited: bool
) -> None:
    budget = shared_budget(shared)
    trace = await ask(ScriptedModel("far", delay=5), budget, Limits(seconds=own))
    assert {call.outcome for call in trace.calls} == {"timeout"}
    assert was_limited(trace, budget) is limited


@pytest.mark.parametrize(("shared", "own", "limited"), [(2, None, True), (2, 4, True), (LATER, 2, False)])
async def test_the_time_of_a_planner_counts_if_it_is_a_share_of_that_of_all_runs(
    shared: float, own: float | None, limited: bool
) -> None:
    budget, planner = shared_budget(shared), ScriptedModel("No plan.", delay=5)
    conductor = Conductor(planner, WorkerPool({"worker": ScriptedModel("far")}), limits=Limits(seconds=own))
    with call_scope(budget):
        trace = await conductor.run("How far is it from Oslo to Rome?")
    assert (trace.text, trace.calls[0].outcome) == ("far", "timeout")
    assert was_limited(trace, budget) is limited


async def test_a_refused_call_counts_unless_the_prompt_is_too_long_for_the_model() -> None:
    budget = Budget(Limits(tokens=10), surrounds_runs=True)
    assert was_limited(await ask(ScriptedModel("far"), budget), budget)
    budget = Budget(Limits(), surrounds_runs=True)
    trace = await ask(ScriptedModel("far", capabilities=ALL.model_copy(update={"context": 10})), budget)
    assert "refused" in {call.outcome for call in trace.calls}
    assert not was_limited(trace, budget)
