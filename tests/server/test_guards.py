from __future__ import annotations

import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor._internal.confidence import mean_interval, wilson_interval
from rl_conductor_server.experiments.guards import broken
from rl_conductor_server.settings import Guards
from rl_conductor_server.store import Answered, PairVerdict

GOOD = Answered(failed=False, seconds=1.0, cost=Decimal("0.01"))
BAD = Answered(failed=True, seconds=9.0, cost=None)
ALL = Guards(errors=0.05, losses=0.5, p95_seconds=5, usd=0.02)


def test_wilsons_interval_is_the_one_of_the_tables() -> None:
    """R: prop.test(8, 10, correct=FALSE) and binom::binom.wilson(0, 20)."""
    eight, none = wilson_interval(8, 10), wilson_interval(0, 20)
    assert (round(eight.low, 4), round(eight.high, 4)) == (0.4902, 0.9433)
    assert (none.low, round(none.high, 4)) == (0.0, 0.1611)
    assert wilson_interval(0, 0).model_dump() == {"value": 0.0, "low": 0.0, "high": 1.0, "n": 0}


def test_a_mean_has_the_normal_interval() -> None:
    found = mean_interval([1.0, 2.0, 3.0, 4.0])
    assert found is not None
    assert (found.value, round(found.low, 3), round(found.high, 3)) == (2.5, 1.235, 3.765)
    assert mean_interval([1.0]) is None


@given(of=st.integers(1, 500), data=st.data())
def test_an_interval_holds_what_was_measured(of: int, data: st.DataObject) -> None:
    found = wilson_interval(data.draw(st.integers(0, of)), of)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_good_answers_break_nothing() -> None:
    even: list[PairVerdict] = ["win", "loss"]
    assert broken(ALL, [GOOD] * 200, even * 100) is None
    assert broken(ALL, [], []) is None


@pytest.mark.parametrize(
    ("answers", "verdicts", "why"),
    [
        ([GOOD] * 40 + [BAD] * 10, [], "errors=0.05 is broken: 10 of 50"),
        ([GOOD.model_copy(update={"seconds": 6.0})] * 10 + [GOOD] * 40, [], "p95_seconds=5 is broken: 10 of 50"),
        ([GOOD.model_copy(update={"cost": Decimal("0.03")})] * 50, [], r"usd=0.02 is broken: $0.0300 an answer, of 50"),
        ([], ["loss"] * 40 + ["win"] * 10, "losses=0.5 is broken: 40 of 50"),
    ],
)
def test_a_guard_that_is_surely_broken_is_named(answers: list[Answered], verdicts: list[PairVerdict], why: str) -> None:
    assert broken(ALL, answers, verdicts) == why


def test_few_answers_prove_nothing_however_bad() -> None:
    assert broken(ALL, [BAD] * 29, ["loss"] * 29) is None
    assert broken(ALL, [BAD] * 30, []) is not None


def test_a_bad_streak_within_what_chance_brings_breaks_nothing() -> None:
    """Of 50 answers, 5 % are 2.5: 5 failures are twice that, and still no proof."""
    assert broken(ALL, [GOOD] * 45 + [BAD.model_copy(update={"seconds": 1.0})] * 5, []) is None


def test_a_guard_that_is_switched_off_watches_nothing() -> None:
    off = Guards(errors=None, losses=None)
    assert broken(off, [BAD] * 100, ["loss"] * 100) is None


def looks(rate: float, seed: int, answers: int = 1_000) -> int | None:
    """After how many answers of which `rate` fail the canary ends; it is looked at after each."""
    chance = random.Random(seed)
    guards = Guards(losses=None)
    seen: list[Answered] = []
    for number in range(answers):
        seen.insert(0, BAD if chance.random() < rate else GOOD)
        if broken(guards, seen[: guards.window], []):
            return number + 1
    return None


def test_a_sound_canary_goes_on_and_a_broken_one_ends_soon_though_both_are_looked_at_after_each_answer() -> None:
    sound = [looks(0.01, seed) for seed in range(20)]
    broken_ones = [looks(0.3, seed) for seed in range(20)]
    assert sound.count(None) >= 19
    ends = [one for one in broken_ones if one is not None]
    assert len(ends) == 20
    assert max(ends) <= 60
