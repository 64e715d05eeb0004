from __future__ import annotations

import pytest

from rl_conductor.train.diagnostics import Reference, bits, diagnostics, verdict
from train_outcomes import FAILED, INVALID, RIGHT, WRONG, outcome


def test_validity_and_what_it_is_worth_are_told_apart() -> None:
    told = diagnostics([[INVALID, WRONG, RIGHT, RIGHT], [INVALID, INVALID, FAILED, RIGHT]], [[], []], [None, None])
    assert told["valid"] == 5 / 8
    assert told["masked"] == 1 / 8
    assert told["right"] == 3 / 7
    assert told["right_if_valid"] == 3 / 4


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


def steps(valid: list[float], right: list[float]) -> list[dict[str, float]]:
    return [{"valid": one, "right_if_valid": other} for one, other in zip(valid, right, strict=True)]


NOISE = [0.48, 0.5, 0.52, 0.5] * 4
RISING = [0.3, 0.32, 0.3, 0.32, *([0.5] * 8), 0.8, 0.82, 0.8, 0.82]


def test_a_run_that_only_learnt_to_be_read_says_so() -> None:
    told = verdict(steps(RISING, NOISE))
    assert told is not None
    assert told.finding == "format only"
    assert told.text.startswith(
        "The gain is format only: more plans are valid, but valid ones are not shown to be better"
    )
    assert "valid 31.0% → 81.0%" in told.text


def test_a_gain_is_one_of_right_answers_given_valid_plans() -> None:
    told = verdict(steps(NOISE, RISING))
    assert told is not None
    assert told.finding == "gain"


def test_noise_is_no_gain() -> None:
    told = verdict(steps(NOISE, [0.3, 0.7] * 4 + [0.4, 0.7] * 4))
    assert told is not None
    assert told.finding == "no gain"


def test_few_steps_prove_nothing() -> None:
    assert verdict([]) is None
    told = verdict(steps([0.0, 0.0, 1.0], [0.0, 0.0, 1.0]))
    assert told is not None
    assert told.finding == "too short"


UNREADABLE = {"valid": 0.0}


def test_without_valid_plans_at_first_there_is_nothing_to_have_become_better_than() -> None:
    told = verdict([UNREADABLE] * 4 + steps([0.5] * 8, [0.3] * 8) + steps([1.0] * 4, [0.3] * 4))
    assert told is not None
    assert told.finding == "format only"
    assert "right given a valid plan unknown → 30.0%, valid 0.0% → 100.0%" in told.text


def test_a_single_step_with_a_valid_plan_is_no_proof() -> None:
    told = verdict([UNREADABLE, *steps([0.1], [0.0]), *steps([0.1] * 4, [0.9] * 4), *steps([0.1] * 2, [0.9] * 2)])
    assert told is not None
    assert told.finding == "too short"


def test_without_any_valid_plan_a_run_tells_nothing() -> None:
    told = verdict([UNREADABLE] * 8)
    assert told is not None
    assert (told.finding, told.first.right_if_valid) == ("too short", None)
