from __future__ import annotations

import pytest

from rl_conductor.bench.statistics import Difference, difference, estimate, valid_difference
from rl_conductor.bench.tables import verdict


def gap(value: float, low: float, high: float) -> Difference:
    return Difference(value=value, low=low, high=high)


def test_a_share_has_the_standard_error_and_wilsons_interval_worked_by_hand() -> None:
    found = estimate([1, 1, 1, 0])
    assert found.value == 0.75
    assert found.error == pytest.approx(0.25)
    assert found.low == pytest.approx(0.3006, abs=1e-4)
    assert found.high == pytest.approx(0.9544, abs=1e-4)
    assert estimate([1, 1, 1]).low < 0.5  # all of three right is no proof of being always right


def test_the_standard_error_is_that_of_questions_and_not_of_repetitions() -> None:
    found = estimate([0.5, 1.0, 0.0, 0.5])  # means of two repetitions each
    assert found.error == pytest.approx((1 / 6) ** 0.5 / 2)
    assert 0 <= found.low < 0.5 < found.high <= 1


def test_nothing_has_no_mean() -> None:
    with pytest.raises(ValueError, match="no questions"):
        estimate([])


def test_mcnemars_test_is_exact() -> None:
    found = difference([1] * 8 + [0, 1, 0], [0] * 8 + [1, 1, 0])
    assert found.value == pytest.approx(7 / 11)
    assert found.p == pytest.approx(2 * (1 + 9) / 2**9)  # 8 against 1 of 9 that differ, both tails
    assert found.low > 0
    assert found.sure


def test_no_difference_at_all_is_not_sure() -> None:
    found = difference([1, 0, 1], [1, 0, 1])
    assert (found.value, found.low, found.high, found.p, found.sure) == (0, 0, 0, 1, False)


def test_repetitions_that_disagree_are_permuted() -> None:
    found = difference([0.5, 1.0, 0.5, 1.0], [0.0, 0.5, 0.0, 0.5])
    assert found.p == pytest.approx(2 / 2**4)


def test_the_difference_given_validity_leaves_invalid_plans_out() -> None:
    ours = [1.0, 0.0] * 10
    theirs = [1.0, None, 0.0, None] * 5
    found = valid_difference(ours, theirs)
    assert found is not None
    assert found.value == 0
    assert found.low < 0 < found.high
    assert valid_difference(ours, [None] * 20) is None


@pytest.mark.parametrize(
    ("raw", "given_valid", "said"),
    [
        (gap(0.2, 0.1, 0.3), gap(0.2, 0.1, 0.3), "gain"),
        (gap(0.2, -0.01, 0.4), gap(0.2, 0.1, 0.3), "not shown"),
        (gap(0.2, 0.0, 0.4), gap(0.2, 0.1, 0.3), "not shown"),
        (gap(0.4, 0.3, 0.5), gap(0.01, -0.1, 0.1), "validity only"),
        (gap(0.4, 0.3, 0.5), gap(-0.2, -0.3, -0.1), "validity only"),
        (gap(0.4, 0.3, 0.5), None, "validity only"),
        (gap(-0.2, -0.3, -0.1), gap(0.2, 0.1, 0.3), "loss"),
    ],
)
def test_a_gain_is_said_only_where_the_interval_leaves_zero_out_and_valid_plans_are_better(
    raw: Difference, given_valid: Difference | None, said: str
) -> None:
    assert verdict(raw, given_valid) == said
