from __future__ import annotations

import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor_server.experiments.confidence import mean_interval, wilson_interval
from rl_conductor_server.experiments.guards import find_tripped_guard
from rl_conductor_server.settings import Guards
from rl_conductor_server.store import AnswerOutcome, PairVerdict

GOOD = AnswerOutcome(failed=False, seconds=1.0, cost=Decimal("0.01"))
BAD = AnswerOutcome(failed=True, seconds=9.0, cost=None)
SLOW = GOOD.model_copy(update={"seconds": 6.0})
EXPENSIVE = GOOD.model_copy(update={"cost": Decimal("0.03")})
ALL = Guards(errors=0.05, losses=0.5, p95_seconds=5, usd=0.02)


def test_wilson_intervals_match_reference_values() -> None:
    """R: prop.test(8, 10, correct=FALSE) and binom::binom.wilson(0, 20)."""
    eight, none = wilson_interval(8, 10), wilson_interval(0, 20)
    assert (round(eight.low, 4), round(eight.high, 4)) == (0.4902, 0.9433)
    assert (none.low, round(none.high, 4)) == (0.0, 0.1611)
    assert wilson_interval(0, 0).model_dump() == {"value": 0.0, "low": 0.0, "high": 1.0, "n": 0}


def test_the_interval_of_a_mean_is_the_normal_one() -> None:
    interval = mean_interval([1.0, 2.0, 3.0, 4.0])
    assert interval is not None
    assert (interval.value, round(interval.low, 3), round(interval.high, 3)) == (2.5, 1.235, 3.765)
    assert mean_interval([1.0]) is None


@given(n=st.integers(1, 500), data=st.data())
def test_an_interval_contains_the_measured_value(n: int, data: st.DataObject) -> None:
    interval = wilson_interval(data.draw(st.integers(0, n)), n)
    assert 0 <= interval.low <= interval.value <= interval.high <= 1


def test_good_answers_trip_no_guard() -> None:
    balanced: list[PairVerdict] = ["win", "loss"]
    assert find_tripped_guard(ALL, [GOOD] * 200, balanced * 100) is None
    assert find_tripped_guard(ALL, [], []) is None


@pytest.mark.parametrize(
    ("answers", "verdicts", "reason"),
    [
        ([GOOD] * 40 + [BAD] * 10, [], "errors=0.05 exceeded: 10 of 50 answers failed"),
        (
            [SLOW] * 10 + [GOOD] * 40,
            [],
            "p95_seconds=5 exceeded: 10 of 50 answers took longer",
        ),
        (
            [EXPENSIVE] * 50,
            [],
            "usd=0.02 exceeded: $0.0300 per answer over 50 answers",
        ),
        ([], ["loss"] * 40 + ["win"] * 10, "losses=0.5 exceeded: 40 of 50 comparisons lost"),
    ],
)
def test_a_tripped_guard_is_described(answers: list[AnswerOutcome], verdicts: list[PairVerdict], reason: str) -> None:
    assert find_tripped_guard(ALL, answers, verdicts) == reason


def test_no_guard_trips_below_the_minimum_sample_size() -> None:
    assert find_tripped_guard(ALL, [BAD] * 29, ["loss"] * 29) is None
    assert find_tripped_guard(ALL, [BAD] * 30, []) is not None
    unpriced = GOOD.model_copy(update={"cost": None})
    assert find_tripped_guard(ALL, [unpriced] * 28 + [EXPENSIVE] * 29, []) is None


def test_a_random_streak_of_failures_trips_no_guard() -> None:
    """5 failures of 50 answers are twice the allowed 5 %, but not significantly more."""
    assert find_tripped_guard(ALL, [GOOD] * 45 + [BAD.model_copy(update={"seconds": 1.0})] * 5, []) is None


def test_a_disabled_guard_never_trips() -> None:
    disabled = Guards(errors=None, losses=None)
    assert find_tripped_guard(disabled, [BAD] * 100, ["loss"] * 100) is None


def answers_until_rollback(rate: float, seed: int, answers: int = 1_000) -> int | None:
    """Simulate a canary with this failure rate, checking the guards after each answer."""
    rng = random.Random(seed)
    guards = Guards(losses=None)
    seen: list[AnswerOutcome] = []
    for number in range(answers):
        seen.insert(0, BAD if rng.random() < rate else GOOD)
        if find_tripped_guard(guards, seen[: guards.window], []):
            return number + 1
    return None


def test_checking_after_each_answer_keeps_good_canaries_and_ends_bad_ones_soon() -> None:
    good = [answers_until_rollback(0.01, seed) for seed in range(20)]
    bad = [answers_until_rollback(0.3, seed) for seed in range(20)]
    assert good.count(None) >= 19
    ends = [count for count in bad if count is not None]
    assert len(ends) == 20
    assert max(ends) <= 60
