"""The plan of a search: measured costs, what fits the caps, and how much would do."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from rl_conductor import Limits
from rl_conductor_training.learn.experience import ExperienceRow
from rl_conductor_training.learn.search.candidates import build_candidates, single_workers
from rl_conductor_training.learn.search.costs import CallCosts, Cost, measure_costs
from rl_conductor_training.learn.search.plan import (
    MAX_WORKFLOWS,
    SearchPlan,
    SearchRound,
    SearchSizes,
    describe_need,
    load_plan,
    plan_search,
)

WORKERS = ("a", "b", "c")
STEP = Cost(usd=0.001, tokens=100, calls=1, seconds=1)
COSTS = CallCosts(dict.fromkeys(WORKERS, STEP), planner=STEP * 5)
SIZES = SearchSizes(
    build_candidates(dict.fromkeys(WORKERS, ""), [], max_steps=3, seed=0),
    single_workers(WORKERS),
    train=30,
    validation=12,
    heldout=18,
)


def search(limits: Limits, costs: CallCosts = COSTS) -> SearchPlan:
    return plan_search(SIZES, costs, limits, Cost())


def test_without_caps_everything_is_searched() -> None:
    plan = search(Limits())
    assert plan.rounds[0].candidates == len(SIZES.candidates)
    assert plan.rounds[-1].questions == 30
    assert (plan.workflows, plan.tries_planners, plan.exploring) == (MAX_WORKFLOWS, True, 1.0)
    assert plan.needed == plan.thorough


@pytest.mark.parametrize("cap", ["usd", "tokens", "calls", "seconds"])
def test_a_tighter_cap_gives_a_smaller_search_that_still_fits(cap: str) -> None:
    whole = getattr(search(Limits()).needed, cap)
    sizes = []
    for share in (1.0, 0.7, 0.5):
        limit = Decimal(str(whole * share)) if cap == "usd" else int(whole * share) + 1
        plan = search(Limits.model_validate({cap: limit}))
        assert getattr(plan.needed, cap) <= float(limit) * 1.0001
        assert 0 < plan.exploring < plan.validating < 1
        sizes.append(plan.needed.tokens)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]


def test_candidates_beyond_those_that_fit_are_screened() -> None:
    assert search(Limits()).screened == 0
    whole = search(Limits()).needed.tokens
    plan = search(Limits(tokens=round(whole * 0.7)))
    first = plan.rounds[0]
    assert first.candidates < first.candidates + plan.screened <= len(SIZES.candidates)
    assert plan.summary.startswith(
        f"{first.candidates} workflows on {first.questions} questions, then {plan.screened} more where none of them is"
    )


def test_the_proof_is_reserved_before_the_search() -> None:
    plan = search(Limits(seconds=900))
    proof = (3 + 5 + 2) * 18  # at least each worker, a plan and two steps for each held-out question
    assert (1 - plan.validating) * 900 >= proof


def test_learners_with_a_search_of_their_own_get_a_share_that_leaves_the_proof_its_reserve() -> None:
    sizes = replace(SIZES, learner_runs=400)
    limits = Limits(seconds=4000)
    alone = search(limits)
    plan = plan_search(sizes, COSTS, limits, Cost())
    assert plan.tries_planners
    assert alone.validating == alone.searching == alone.choosing == pytest.approx(plan.choosing)
    assert plan.exploring < plan.validating < plan.searching < plan.choosing
    assert plan.searching - plan.validating == pytest.approx(0.15)
    assert plan.needed.seconds <= 4000
    proof = (3 + 5 + 2) * 18  # at least each worker, a plan and two steps for each held-out question
    assert (1 - plan.choosing) * 4000 >= proof
    thorough = plan_search(sizes, COSTS, Limits(), Cost()).needed.seconds
    assert thorough == pytest.approx(search(Limits()).needed.seconds + 7 * 400)
    few = plan_search(replace(SIZES, learner_runs=10), COSTS, limits, Cost())
    assert few.searching - few.validating == pytest.approx(7 * 10 / 4000)


def test_learners_search_as_much_as_they_need_where_everything_fits() -> None:
    sizes = replace(SIZES, learner_runs=150)
    thorough = plan_search(sizes, COSTS, Limits(), Cost()).needed
    assert plan_search(sizes, COSTS, Limits(seconds=4000), Cost()).needed == thorough
    tight = plan_search(sizes, COSTS, Limits(seconds=int(thorough.seconds * 0.9)), Cost())
    assert tight.needed.tokens < thorough.tokens
    assert tight.thorough == thorough


def test_learners_that_train_get_time_before_the_proof() -> None:
    limits = Limits(seconds=4000)
    plan = plan_search(replace(SIZES, training_seconds=600), COSTS, limits, Cost())
    assert plan.searching - plan.validating == pytest.approx(600 / 4000)
    longer = plan_search(replace(SIZES, training_seconds=10_000), COSTS, limits, Cost())
    assert 0.3 < longer.searching - longer.validating <= 0.45
    proof = (3 + 5 + 2) * 18  # at least each worker, a plan and two steps for each held-out question
    assert (1 - longer.choosing) * 4000 >= proof
    tokens = plan_search(replace(SIZES, training_seconds=600), COSTS, Limits(tokens=10**6), Cost())
    assert tokens.needed.tokens == search(Limits(tokens=10**6)).needed.tokens


def test_a_fast_exploration_allows_a_larger_plan() -> None:
    limits = Limits(seconds=900)
    fast = COSTS.faster(0.7)
    assert (fast.workers["a"], fast.planner.seconds) == (STEP.model_copy(update={"seconds": 0.7}), 3.5)
    assert search(limits, fast).needed.tokens > search(limits).needed.tokens
    assert (COSTS.faster(0).workers["a"].seconds, COSTS.faster(2)) == (0.5, COSTS)


def test_the_runs_of_all_rounds_are_counted() -> None:
    plan = search(Limits()).model_copy(
        update={"rounds": (SearchRound(candidates=4, questions=6), SearchRound(candidates=2, questions=10))}
    )
    assert plan.runs == 4 * 6 + 2 * 4


def test_a_cap_that_is_too_tight_says_how_much_would_do() -> None:
    limits = Limits(seconds=60, usd=Decimal("0.1"))
    plan = search(limits)
    assert plan.needed.seconds > 60
    assert plan.workflows == 2
    assert plan.exploring < plan.validating < 1
    minutes = -(-plan.thorough.seconds // 60)
    text = describe_need(plan.thorough, limits)
    assert text == f"a thorough one takes about $1.9 and {minutes:.0f} minutes, or more"
    roomy = search(Limits(seconds=minutes * 60 / 0.7, usd=Decimal(str(plan.thorough.usd / 0.7))))
    assert roomy.workflows == MAX_WORKFLOWS


def test_equal_steps_are_counted_once() -> None:
    singles = single_workers(WORKERS)
    checks = [workflow for workflow in SIZES.candidates if workflow.steps[0] == singles[0].steps[0]]
    assert len(checks) > 3
    pairs = [workflow for workflow in checks if len(workflow.steps) == 2 and workflow.steps[1].access]
    assert COSTS.of_workflows([singles[0], *pairs]).tokens == 100 * (1 + len(pairs))
    assert COSTS.of_workflows([singles[0], singles[0]]).tokens == 100


def test_costs_are_means_over_runs_and_a_worker_without_any_counts_as_the_others() -> None:
    def row(tokens: int, seconds: float) -> ExperienceRow:
        return ExperienceRow(
            key="", sample="", question="?", system="workflow", workflow=None, score=0, tokens=tokens, seconds=seconds
        )

    first = row(200, 80)  # loads the model
    costs = measure_costs({"a": [first, row(100, 4), row(300, 6)], "b": []}, [], parallelism=2)
    assert costs.workers["a"] == costs.workers["b"] == Cost(tokens=200, seconds=3)
    assert costs.planner == Cost()


def test_an_interrupted_run_keeps_its_plan_until_the_caps_change(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    small, large = search(Limits(seconds=600)), search(Limits())
    first = load_plan(path, small, "600 seconds")
    assert load_plan(path, large, "600 seconds") == first
    assert load_plan(path, large, "no caps").rounds == large.rounds
