from __future__ import annotations

import numpy as np
import pytest

from rl_conductor_training.train.rewards.verdict import ShareEstimate, StepWindow, Verdict, compute_verdict

PLANS = 48.0


def steps(valid: list[float], right: list[float], *, plans: float = PLANS) -> list[dict[str, float]]:
    return [
        {"valid": valid_share, "plans": plans, "right_if_valid": right_share, "scored": max(1.0, valid_share * plans)}
        for valid_share, right_share in zip(valid, right, strict=True)
    ]


def verdict_of(run: list[dict[str, float]]) -> Verdict:
    verdict = compute_verdict(run)
    assert verdict is not None
    return verdict


UNREADABLE = {"valid": 0.0, "plans": PLANS}
NOISE = [0.48, 0.5, 0.52, 0.5] * 5
RISING = [*([0.3, 0.32] * 3), *([0.5] * 8), *([0.8, 0.82] * 3)]


def test_a_gain_in_validity_only_is_reported_as_format_only() -> None:
    verdict = verdict_of(steps(RISING, NOISE))
    assert verdict.finding == "format only"
    assert verdict.text.startswith(
        "The gain is format only: more plans are valid, but valid ones are not shown to be better"
    )
    assert "valid 30.8% → 81.2% (± 3.9%), first 5 against last 5 steps" in verdict.text


def test_a_gain_requires_more_right_answers_given_valid_plans() -> None:
    assert verdict_of(steps(NOISE, RISING)).finding == "gain"


def test_noise_is_no_gain() -> None:
    assert verdict_of(steps(NOISE, [0.3, 0.7] * 5 + [0.4, 0.7] * 5)).finding == "no gain"


@pytest.mark.parametrize(("valid", "right"), [(NOISE, RISING[::-1]), (RISING[::-1], NOISE), (RISING[::-1], RISING)])
def test_a_decline_is_reported_whatever_else_improved(valid: list[float], right: list[float]) -> None:
    verdict = verdict_of(steps(valid, right))
    assert verdict.finding == "worse"
    assert verdict.text.startswith("Plans became worse")


def test_a_drop_from_63_of_192_right_to_22_of_176_is_worse() -> None:
    shares = [[0.25, 0.5, 0.375, 0.1875, 0.328125], [0.125, 0.1875, 0.0625, 0.125, 0.125]]
    run = [*steps([1.0] * 5, shares[0], plans=38.4), *steps([1.0] * 10, [0.2] * 10), *steps([1.0] * 5, shares[1])]
    assert verdict_of(run).finding == "worse"


def test_equal_steps_keep_the_sampling_error_of_their_plans() -> None:
    verdict = verdict_of(steps([1.0] * 20, [0.25] * 10 + [0.375] * 10, plans=8))
    assert verdict.finding == "no gain"
    assert "25.0% → 37.5% (± 10.4%)" in verdict.text
    assert verdict_of(steps([1.0] * 20, [0.25] * 10 + [0.375] * 10, plans=800)).finding == "gain"


def test_too_few_steps_give_no_finding() -> None:
    assert compute_verdict([]) is None
    assert verdict_of(steps([1.0] * 3, [0.0, 0.0, 1.0])).finding == "too short"
    assert verdict_of(steps([1.0] * 8, [0.25] * 4 + [0.375] * 4, plans=10_000)).finding == "too short"
    assert verdict_of(steps([1.0] * 10, [0.25] * 5 + [0.375] * 5, plans=10_000)).finding == "gain"


def test_without_valid_plans_at_first_there_is_no_gain() -> None:
    verdict = verdict_of([UNREADABLE] * 5 + steps([0.5] * 10, [0.3] * 10) + steps([1.0] * 5, [0.3] * 5))
    assert verdict.finding == "format only"
    assert "right given a valid plan unknown → 30.0%, valid 0.0% → 100.0%" in verdict.text


def test_four_steps_with_a_valid_plan_are_too_few() -> None:
    assert verdict_of([UNREADABLE, *steps([0.1] * 4, [0.0] * 4), *steps([0.1] * 5, [0.9] * 5)]).finding == "too short"


def test_without_any_valid_plan_there_is_no_finding() -> None:
    verdict = verdict_of([UNREADABLE] * 20)
    assert verdict.first.right_if_valid is None
    assert verdict.finding == "too short"


def test_the_standard_error_of_a_share_matches_a_manual_calculation() -> None:
    """Ten of twenty plans were right: a coin's variance, 0.25, over twenty. Steps that differ by 0.8 doubt more."""
    alike, unlike = ShareEstimate.from_steps([0.5, 0.5], [10, 10]), ShareEstimate.from_steps([0.1, 0.9], [10, 10])
    assert alike is not None
    assert unlike is not None
    assert alike.value == unlike.value == 0.5
    assert alike.error == pytest.approx((0.25 / 20) ** 0.5)
    assert unlike.error == pytest.approx(0.4)
    assert ShareEstimate.from_steps([], []) is None
    assert StepWindow.from_steps([UNREADABLE]).right_if_valid is None


@pytest.mark.parametrize(("length", "questions", "rollouts"), [(20, 6, 8), (60, 2, 4), (200, 4, 64)])
def test_without_a_change_one_run_in_forty_is_reported_as_a_gain(length: int, questions: int, rollouts: int) -> None:
    """Questions differ much: of some the policy knows the answer, of most it does not."""
    chance, runs = np.random.default_rng(length), 1000
    easy = chance.beta(0.4, 0.8, size=(runs, length, questions))
    right = chance.binomial(rollouts, easy).sum(axis=2) / (questions * rollouts)
    findings = [
        verdict_of(steps([1.0] * length, list(map(float, run)), plans=questions * rollouts)).finding for run in right
    ]
    for finding in ("gain", "worse"):
        assert 0.01 < findings.count(finding) / runs < 0.036  # 0.025, within 2.2 standard errors above
