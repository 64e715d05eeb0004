"""The exploration: what it tries with the budget that its plan leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from rl_conductor import Limits, WorkerPool, Workflow
from rl_conductor.calls.budget import NOTHING
from rl_conductor_training.learn.budget import LearningBudget
from rl_conductor_training.learn.experience import Experience
from rl_conductor_training.learn.runner import Runner
from rl_conductor_training.learn.search.candidates import build_candidates, describe, descriptions
from rl_conductor_training.learn.search.costs import Cost
from rl_conductor_training.learn.search.explore import (
    Exploration,
    exploration_order,
    explore,
    explore_further,
    score_table,
)
from rl_conductor_training.learn.search.plan import MAX_WORKFLOWS, SearchPlan, SearchRound
from rl_conductor_training.learn.workspace import open_workspace
from rl_conductor_training.tasks import Sample, Task
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


@dataclass
class Case:
    """Questions that the chain atlas → speller answers, and a runner with a budget."""

    runner: Runner
    samples: Sequence[Sample]
    candidates: list[Workflow]
    pool: WorkerPool

    async def explore(self, plan: SearchPlan) -> Exploration:
        return await explore(self.runner, self.samples, self.candidates, (), plan)

    async def explore_all(self) -> Exploration:
        """Explores the single workers as planned, then the other candidates."""
        planned = await self.explore(ONLY_SINGLES)
        others = planned.select_others(self.candidates) if planned.is_complete else []
        result = await explore_further(self.runner, self.samples, planned, others, ONLY_SINGLES)
        return replace(result, is_complete=planned.is_complete)


@asynccontextmanager
async def opened_case(folder: Path, limits: Limits, task: Task | None = None) -> AsyncIterator[Case]:
    pool, task = build_pool(), task or build_task("chain")
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
    runner.begin_stage(LearningBudget(limits, NOTHING).stage(1.0))
    try:
        yield Case(runner, task.samples, build_candidates(descriptions(pool), (), max_steps=2, seed=0), pool)
    finally:
        await runner.aclose()


def samples_of(**sizes: int) -> list[Sample]:
    """Returns questions of each domain, by its size."""
    return [
        Sample(id=f"{domain}-{number}", question="?", domain=domain)
        for domain, size in sizes.items()
        for number in range(size)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_questions_have_each_domain_in_its_share(seed: int) -> None:
    order = exploration_order(samples_of(sums=8, facts=8, words=4), seed)
    for end in (5, 10, 15, 20):
        counts = Counter(sample.domain for sample in order[:end])
        assert counts == {"sums": 2 * end / 5, "facts": 2 * end / 5, "words": end / 5}


def test_the_order_within_a_domain_is_random() -> None:
    samples = samples_of(sums=30, facts=1)
    first, second = (exploration_order(samples, seed) for seed in (0, 1))
    assert first != second
    assert sorted(first, key=samples.index) == samples


async def test_what_the_plan_leaves_of_the_budget_goes_to_further_candidates(tmp_path: Path) -> None:
    async with opened_case(tmp_path, Limits()) as case:
        result = await case.explore_all()
        assert result.is_complete
        assert result.tried == len(result.candidates) > 3
        assert describe(result.portfolio[0]).startswith("atlas → speller")


async def test_more_candidates_are_screened_on_the_questions_that_no_other_one_answers(tmp_path: Path) -> None:
    async with opened_case(tmp_path, Limits()) as case:
        result = await case.explore(ONLY_SINGLES.model_copy(update={"screened": 12}))
        table = score_table(case.runner, case.samples)
        runs = {workflow: len(case.samples) - table.scores(workflow).count(None) for workflow in result.screened}
        assert len(runs) == 12
        assert {workflow for workflow, count in runs.items() if count == 8} == {result.portfolio[0]}
        assert describe(result.portfolio[0]).startswith("atlas → speller")
        assert list(runs.values())[-1] == 0  # the chain was right on all of them before
        assert result.tried == 3 + 12
        failures = [workflow for workflow in result.screened if workflow != result.portfolio[0]]
        assert result.select_others(case.candidates)[-11:] == failures


async def test_what_an_earlier_search_screened_is_kept_again(tmp_path: Path) -> None:
    plan = ONLY_SINGLES.model_copy(update={"screened": 12})
    async with opened_case(tmp_path, Limits()) as case:
        first = await case.explore(plan)
        again = await case.explore(plan)
        assert again.candidates == first.candidates
        assert again.portfolio == first.portfolio


async def test_rows_of_other_questions_and_workers_are_not_in_the_table(tmp_path: Path) -> None:
    async with opened_case(tmp_path, Limits()) as case:
        await case.explore(ONLY_SINGLES)
        atlas, speller, _ = case.candidates[:3]
        changed = [sample.model_copy(update={"question": f"Now: {sample.question}"}) for sample in case.samples[1:]]
        samples = [case.samples[0], *changed]
        fingerprints = case.runner.workers
        versions = (fingerprints, {**fingerprints, "atlas": "changed"}, {"speller": fingerprints["speller"]})
        tables = [score_table(replace(case.runner, workers=workers), samples) for workers in versions]
        assert [(table.count(atlas), table.count(speller)) for table in tables] == [(1, 1), (0, 1), (0, 1)]


async def test_a_batch_that_the_budget_cuts_off_is_not_compared(tmp_path: Path) -> None:
    planned = 3 * 8
    async with opened_case(tmp_path, Limits(calls=planned + 5)) as case:
        result = await case.explore_all()
        assert result.is_complete
        assert planned < count_calls(case.pool) <= planned + 5
        assert [len(workflow.steps) for workflow in result.portfolio] == [1, 1]


async def test_a_budget_that_ends_before_the_plan_is_reported(tmp_path: Path) -> None:
    async with opened_case(tmp_path, Limits(calls=10)) as case:
        result = await case.explore_all()
        assert not result.is_complete
        assert count_calls(case.pool) <= 10


async def test_a_workflow_that_a_cap_kept_from_its_last_questions_is_still_selected(tmp_path: Path) -> None:
    rounds = (SearchRound(candidates=9, questions=4), SearchRound(candidates=2, questions=8))
    plan = ONLY_SINGLES.model_copy(update={"rounds": rounds})
    async with opened_case(tmp_path / "whole", Limits()) as case:
        await case.explore(plan)
        calls = count_calls(case.pool)
    async with opened_case(tmp_path / "cut", Limits(calls=calls - 2)) as case:
        result = await case.explore(plan)
        assert not result.is_complete
        assert None in score_table(case.runner, case.samples).scores(result.portfolio[0])
        assert describe(result.portfolio[0]).startswith("atlas → speller")


async def test_a_repeated_search_tries_nothing_new_on_the_questions_that_no_workflow_answers(tmp_path: Path) -> None:
    rounds = (SearchRound(candidates=9, questions=4), SearchRound(candidates=2, questions=10))
    plan = ONLY_SINGLES.model_copy(update={"rounds": rounds, "workflows": MAX_WORKFLOWS})
    async with opened_case(tmp_path, Limits(), build_task("direction chain", count=5)) as case:
        case.candidates = [workflow for workflow in case.candidates if workflow.steps[-1].worker == "pointer"]
        await case.explore(plan)
        rows = len(case.runner.experience)
        await case.explore(plan)
        assert len(case.runner.experience) == rows
