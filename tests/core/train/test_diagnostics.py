from __future__ import annotations

import pytest

from rl_conductor.train.diagnostics import Reference, bits, diagnostics
from train_outcomes import FAILED, INVALID, RIGHT, WRONG, outcome


def test_validity_and_what_it_is_worth_are_told_apart() -> None:
    told = diagnostics([[INVALID, WRONG, RIGHT, RIGHT], [INVALID, INVALID, FAILED, RIGHT]], [[], []], [None, None])
    assert told["valid"] == 5 / 8
    assert told["masked"] == 1 / 8
    assert told["right"] == 3 / 7
    assert told["right_if_valid"] == 3 / 4
    assert (told["plans"], told["scored"]) == (8, 4)


def test_groups_whose_rewards_are_alike_teach_nothing() -> None:
    given: list[list[float | None]] = [[0.5, 0.5, None], [0.5, 1.0, 0.0], [None, None, None], [1.0, 1.0, 1.0]]
    assert diagnostics([[RIGHT]] * 4, given, [None] * 4)["no_advantage"] == 3 / 4


def test_a_collapse_to_one_worker_and_one_depth_shows_as_no_bits() -> None:
    collapsed = diagnostics([[outcome(1.0, workers="a")] * 4], [[]], [None])
    assert (collapsed["workers_bits"], collapsed["steps_bits"], collapsed["steps"]) == (0, 0, 1)
    varied = diagnostics([[outcome(1.0, workers="a"), outcome(1.0, workers="bcd")]], [[]], [None])
    assert (varied["workers_bits"], varied["steps_bits"], varied["steps"]) == (2, 1, 2)


def test_entropy_in_bits() -> None:
    assert bits("aab") == pytest.approx(0.9183, abs=1e-4)


def test_regret_is_told_where_others_are_known_and_masked_plans_are_left_out() -> None:
    known = Reference(id="q", single=0.5, oracle=1.0)
    told = diagnostics([[RIGHT, WRONG, WRONG, WRONG, FAILED], [RIGHT]], [[], []], [known, None])
    assert (told["regret_single"], told["regret_oracle"]) == (0.25, 0.75)
    assert "regret_single" not in diagnostics([[RIGHT]], [[]], [None])


def test_what_was_used_is_added_up() -> None:
    told = diagnostics([[outcome(1.0, usd="0.25", tokens=7), outcome(0.0, usd="0.5", tokens=5)]], [[]], [None])
    assert (told["usd"], told["tokens"], told["calls"]) == (0.75, 12, 2)


def test_without_a_valid_plan_nothing_is_said_of_what_is_right_given_one() -> None:
    told = diagnostics([[INVALID, INVALID]], [[0.0, 0.0]], [None])
    assert told["valid"] == 0
    assert "right_if_valid" not in told
    assert "steps" not in told
