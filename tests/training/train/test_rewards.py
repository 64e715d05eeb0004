from __future__ import annotations

import pytest

from rl_conductor_training.train.config import RewardSettings
from rl_conductor_training.train.rewards.compute import group_rewards
from train_scored_plans import FAILED, INVALID, RIGHT, WRONG, scored_plan

GROUP = [INVALID, WRONG, RIGHT, FAILED, scored_plan(0.5)]


def test_the_papers_reward() -> None:
    assert group_rewards(GROUP, RewardSettings()) == [0.0, 0.5, 1.0, None, 0.75]


def test_the_supplements_reward() -> None:
    assert group_rewards(GROUP, RewardSettings(kind="supplement")) == [0.0, 0.5, 1.5, None, 1.0]


def test_the_cost_bonus_ranks_right_answers() -> None:
    group = [scored_plan(1.0, usd="0.03"), scored_plan(1.0, usd="0.01"), scored_plan(1.0, usd="0.02")]
    assert group_rewards(group, RewardSettings(cost_bonus=0.2)) == [1.0, 1.2, 1.1]


def test_wrong_answers_get_no_cost_bonus_and_do_not_affect_ranks() -> None:
    group = [scored_plan(0.0, usd="0.001"), scored_plan(1.0, usd="0.02"), scored_plan(1.0, usd="0.01"), INVALID, FAILED]
    assert group_rewards(group, RewardSettings(cost_bonus=0.2)) == [0.5, 1.0, 1.2, 0.0, None]


def test_equal_costs_share_their_rank() -> None:
    group = [scored_plan(1.0, usd="0.01"), scored_plan(1.0, usd="0.01"), scored_plan(1.0, usd="0.05")]
    assert group_rewards(group, RewardSettings(cost_bonus=0.4)) == pytest.approx([1.3, 1.3, 1.0])


def test_a_single_right_answer_gets_no_cost_bonus() -> None:
    assert group_rewards([scored_plan(1.0, usd="0.01"), WRONG], RewardSettings(cost_bonus=0.4)) == [1.0, 0.5]


def test_answers_of_unknown_cost_get_no_bonus_and_do_not_affect_ranks() -> None:
    unknown = scored_plan(1.0, usd="0.001", calls=2, unpriced=1)
    group = [unknown, scored_plan(1.0, usd="0.01"), scored_plan(1.0, usd="0.02")]
    assert group_rewards(group, RewardSettings(cost_bonus=0.2)) == [1.0, 1.2, 1.0]
    assert group_rewards(group, RewardSettings(cost_bonus=0.2, cost_metric="tokens")) == pytest.approx([1.1, 1.1, 1.1])


def test_without_a_cost_bonus_costs_do_not_matter() -> None:
    assert group_rewards([scored_plan(1.0, usd="9"), RIGHT], RewardSettings()) == [1.0, 1.0]


@pytest.mark.parametrize("measure", ["tokens", "seconds"])
def test_the_cost_metric_can_be_tokens_or_seconds(measure: str) -> None:
    group = [scored_plan(1.0, usd="0.01", tokens=90, seconds=9.0), scored_plan(1.0, usd="0.05", tokens=10, seconds=1.0)]
    assert group_rewards(group, RewardSettings.model_validate({"cost_bonus": 0.2, "cost_metric": measure})) == [
        1.0,
        1.2,
    ]
