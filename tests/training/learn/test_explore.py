"""The exploration: what it tries with the budget that its plan leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from rl_conductor import Limits
from rl_conductor.calls.budget import Amount
from rl_conductor_training.learn.experience import Experience
from rl_conductor_training.learn.runner import Runner, SharedBudget
from rl_conductor_training.learn.search.candidates import build_candidates, describe, descriptions
from rl_conductor_training.learn.search.costs import Cost
from rl_conductor_training.learn.search.explore import Exploration, explore, explore_further
from rl_conductor_training.learn.search.plan import SearchPlan, SearchRound
from rl_conductor_training.learn.workspace import open_workspace
from training.learn.skills import build_planner, build_pool, build_task, count_calls

ONLY_SINGLES = SearchPlan(
    rounds=(SearchRound(candidates=3, questions=4), SearchRound(candidates=3, questions=8)),
    workflows=2,
    tries_planners=False,
    exploring=1,
    validating=1,
    searching=1,
    choosing=1,
    needed=Cost(),
    thorough=Cost(),
)


@asynccontextmanager
async def exploration(folder: Path, limits: Limits) -> AsyncIterator[tuple[Exploration, int]]:
    """An exploration that planned the single workers alone, and the calls that it took."""
    pool, task = build_pool(), build_task("chain")
    workspace = open_workspace(pool, build_planner(), folder)
    runner = Runner(
        task=task,
        conductor=workspace.conductor,
        experience=Experience(folder / "experience.jsonl"),
        workers=workspace.workers,
        concurrency=1,
        on_row=lambda _row: None,
        on_status=lambda _status: None,
    )
    runner.begin_stage(SharedBudget(limits, Amount()).stage(1.0))
    candidates = build_candidates(descriptions(pool), (), max_steps=2, seed=0)
    try:
        planned = await explore(runner, task.samples, candidates, (), ONLY_SINGLES)
        others = candidates[len(planned.candidates) :] if planned.is_complete else []
        result = await explore_further(runner, task.samples, planned, others, ONLY_SINGLES)
        yield replace(result, is_complete=planned.is_complete), count_calls(pool)
    finally:
        await runner.aclose()


async def test_what_the_plan_leaves_of_the_budget_goes_to_further_candidates(tmp_path: Path) -> None:
    async with exploration(tmp_path, Limits()) as (result, _):
        assert result.is_complete
        assert len(result.candidates) > 3
        assert describe(result.portfolio[0]).startswith("atlas → speller")


async def test_a_batch_that_the_budget_cuts_off_is_not_compared(tmp_path: Path) -> None:
    planned = 3 * 8
    async with exploration(tmp_path, Limits(calls=planned + 5)) as (result, calls):
        assert result.is_complete
        assert planned < calls <= planned + 5
        assert [len(workflow.steps) for workflow in result.portfolio] == [1, 1]


async def test_a_budget_that_ends_before_the_plan_is_reported(tmp_path: Path) -> None:
    async with exploration(tmp_path, Limits(calls=10)) as (result, calls):
        assert not result.is_complete
        assert calls <= 10
