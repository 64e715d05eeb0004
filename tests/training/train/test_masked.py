from __future__ import annotations

import pytest

from rl_conductor_training.train.rollouts.masked import (
    MAX_REASON_CHARS,
    MaskedPlans,
    NothingScoredError,
    ensure_scored,
)
from train_scored_plans import FAILED, INVALID, WRONG


def test_the_most_frequent_reasons_come_first_and_rare_ones_are_counted() -> None:
    masked = MaskedPlans.of(["down", "busy", "busy", "late", "odd", "late", "rare"])
    assert masked.reasons == {"busy": 2, "late": 2, "down": 1, "odd": 1, "rare": 1}
    assert masked.text == (
        "7 plans left out, because a call to a worker or a judge failed (2 × busy; 2 × late; 1 × down; 2 other reasons)"
    )


def test_a_long_reason_is_one_short_line() -> None:
    text = MaskedPlans.of(["500:\n" + "x" * 2_000]).text
    assert text.startswith("1 plan left out, because a call to a worker or a judge failed (1 × 500: xxx")
    assert len(text) < MAX_REASON_CHARS + 80


def test_a_step_without_a_score_is_an_error_if_most_of_its_plans_failed() -> None:
    for plans in ([FAILED] * 3, [FAILED, FAILED, INVALID]):
        with pytest.raises(NothingScoredError, match=r"step 7 has no plan that could be scored: . plans left out"):
            ensure_scored(7, plans)
    for plans in ([FAILED, FAILED, WRONG], [FAILED, INVALID, INVALID], [INVALID]):
        ensure_scored(7, plans)


def test_nothing_is_said_without_masked_plans() -> None:
    assert MaskedPlans().text == ""
