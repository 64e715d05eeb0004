from __future__ import annotations

import pytest

from rl_conductor.types import Usage
from rl_conductor_training.train.rewards.metrics import Reference, entropy_bits, step_metrics
from train_scored_plans import FAILED, INVALID, RIGHT, WRONG, scored_plan


def test_validity_and_accuracy_given_validity_are_separate() -> None:
    metrics = step_metrics([[INVALID, WRONG, RIGHT, RIGHT], [INVALID, INVALID, FAILED, RIGHT]], [[], []], [None, None])
    assert metrics["valid"] == 5 / 8
    assert metrics["masked"] == 1 / 8
    assert metrics["right"] == 3 / 7
    assert metrics["right_if_valid"] == 3 / 4
    assert (metrics["plans"], metrics["scored"]) == (8, 4)


def test_partial_scores_count_with_their_value() -> None:
    metrics = step_metrics([[INVALID, scored_plan(0.4), scored_plan(0.8)]], [[]], [None])
    assert metrics["right"] == pytest.approx(0.4)
    assert metrics["right_if_valid"] == pytest.approx(0.6)


def test_groups_with_equal_rewards_have_no_advantage() -> None:
    rewards: list[list[float | None]] = [[0.5, 0.5, None], [0.5, 1.0, 0.0], [None, None, None], [1.0, 1.0, 1.0]]
    assert step_metrics([[RIGHT]] * 4, rewards, [None] * 4)["no_advantage"] == 3 / 4


def test_a_collapse_to_one_worker_and_depth_has_zero_entropy() -> None:
    collapsed = step_metrics([[scored_plan(1.0, workers="a")] * 4], [[]], [None])
    assert (collapsed["workers_bits"], collapsed["steps_bits"], collapsed["steps"]) == (0, 0, 1)
    varied = step_metrics([[scored_plan(1.0, workers="a"), scored_plan(1.0, workers="bcd")]], [[]], [None])
    assert (varied["workers_bits"], varied["steps_bits"], varied["steps"]) == (2, 1, 2)


def test_entropy_in_bits() -> None:
    assert entropy_bits("aab") == pytest.approx(0.9183, abs=1e-4)


def test_regret_needs_references_and_ignores_masked_plans() -> None:
    reference = Reference(id="q", single=0.5, oracle=1.0)
    metrics = step_metrics([[RIGHT, WRONG, WRONG, WRONG, FAILED], [RIGHT]], [[], []], [reference, None])
    assert (metrics["regret_single"], metrics["regret_oracle"]) == (0.25, 0.75)
    assert "regret_single" not in step_metrics([[RIGHT]], [[]], [None])


def test_usage_is_summed() -> None:
    metrics = step_metrics(
        [[scored_plan(1.0, usd="0.25", tokens=7), scored_plan(0.0, usd="0.5", tokens=5)]], [[]], [None]
    )
    assert (metrics["usd"], metrics["tokens"], metrics["calls"]) == (0.75, 12, 2)


def test_the_dollars_of_a_step_are_left_out_if_a_price_is_unknown() -> None:
    unpriced = scored_plan(1.0).model_copy(update={"usage": Usage(calls=1, unpriced_calls=1)})
    assert "usd" not in step_metrics([[scored_plan(1.0, usd="0.25"), unpriced]], [[]], [None])


def test_without_a_valid_plan_accuracy_given_validity_is_undefined() -> None:
    metrics = step_metrics([[INVALID, INVALID]], [[0.0, 0.0]], [None])
    assert metrics["valid"] == 0
    assert "right_if_valid" not in metrics
    assert "steps" not in metrics
