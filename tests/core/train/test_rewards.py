from __future__ import annotations

import pytest

from rl_conductor.train.config import RewardEntry
from rl_conductor.train.rewards import rewards
from train_outcomes import FAILED, INVALID, RIGHT, WRONG, outcome

GROUP = [INVALID, WRONG, RIGHT, FAILED, outcome(0.5)]


def test_the_papers_reward() -> None:
    assert rewards(GROUP, RewardEntry()) == [0.0, 0.5, 1.0, None, 0.75]


def test_the_supplements_reward() -> None:
    assert rewards(GROUP, RewardEntry(kind="supplement")) == [0.0, 0.5, 1.5, None, 1.0]


def test_thrift_ranks_right_answers_among_each_other() -> None:
    group = [outcome(1.0, usd="0.03"), outcome(1.0, usd="0.01"), outcome(1.0, usd="0.02")]
    assert rewards(group, RewardEntry(thrift=0.2)) == [1.0, 1.2, 1.1]


def test_a_wrong_answer_gains_nothing_by_being_cheap_and_is_no_rival() -> None:
    group = [outcome(0.0, usd="0.001"), outcome(1.0, usd="0.02"), outcome(1.0, usd="0.01"), INVALID, FAILED]
    assert rewards(group, RewardEntry(thrift=0.2)) == [0.5, 1.0, 1.2, 0.0, None]


def test_equal_costs_share_what_is_between_them() -> None:
    group = [outcome(1.0, usd="0.01"), outcome(1.0, usd="0.01"), outcome(1.0, usd="0.05")]
    assert rewards(group, RewardEntry(thrift=0.4)) == pytest.approx([1.3, 1.3, 1.0])


def test_the_only_right_answer_has_nobody_to_be_cheaper_than() -> None:
    assert rewards([outcome(1.0, usd="0.01"), WRONG], RewardEntry(thrift=0.4)) == [1.0, 0.5]


def test_an_answer_of_unknown_price_is_neither_cheap_nor_a_rival() -> None:
    unknown = outcome(1.0, usd="0.001", calls=2, unpriced=1)
    group = [unknown, outcome(1.0, usd="0.01"), outcome(1.0, usd="0.02")]
    assert rewards(group, RewardEntry(thrift=0.2)) == [1.0, 1.2, 1.0]
    assert rewards(group, RewardEntry(thrift=0.2, thrift_by="tokens")) == pytest.approx([1.1, 1.1, 1.1])


def test_without_thrift_costs_do_not_matter() -> None:
    assert rewards([outcome(1.0, usd="9"), RIGHT], RewardEntry()) == [1.0, 1.0]


@pytest.mark.parametrize("measure", ["tokens", "seconds"])
def test_thrift_can_be_of_tokens_or_of_waiting(measure: str) -> None:
    group = [outcome(1.0, usd="0.01", tokens=90, seconds=9.0), outcome(1.0, usd="0.05", tokens=10, seconds=1.0)]
    assert rewards(group, RewardEntry.model_validate({"thrift": 0.2, "thrift_by": measure})) == [1.0, 1.2]
