from __future__ import annotations

import numpy as np
import pytest

from rl_conductor_training.bench.statistics import (
    Difference,
    bootstrap_ratio,
    estimate,
    holm,
    mean_difference,
    paired_difference,
    sign_flip_test,
)


def gap(p: float) -> Difference:
    return Difference(value=0.1, low=0.01, high=0.2, p=p, n=9)


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
    found = mean_difference([1] * 8 + [0, 1, 0], [0] * 8 + [1, 1, 0])
    assert found.value == pytest.approx(7 / 11)
    assert found.p == pytest.approx(2 * (1 + 9) / 2**9)  # 8 against 1 of 9 that differ, both tails
    assert found.low > 0
    assert found.significant


def test_no_difference_at_all_is_not_sure() -> None:
    found = mean_difference([1, 0, 1], [1, 0, 1])
    assert (found.value, found.p, found.significant) == (0, 1, False)


def test_repetitions_that_disagree_are_permuted() -> None:
    found = mean_difference([0.5, 1.0, 0.5, 1.0], [0.0, 0.5, 0.0, 0.5])
    assert found.p == pytest.approx(2 / 2**4)


def test_a_single_repetition_that_disagrees_shows_nothing() -> None:
    assert mean_difference([0.5, 1], [0, 1]).p == 1


def test_changes_of_sign_are_all_looked_at_or_else_drawn_so_that_p_is_rather_too_large() -> None:
    assert sign_flip_test(np.full(13, 0.5)) == pytest.approx(2 / 2**13)
    assert 2 / 2**14 < sign_flip_test(np.full(14, 0.5)) < 0.001


def test_questions_on_which_both_agree_change_the_interval_but_not_p() -> None:
    few, many = (mean_difference([1] * 8 + [1] * more, [0] * 8 + [1] * more) for more in (2, 92))
    assert few.p == many.p
    assert many.high < few.low


def test_the_interval_of_paired_answers_is_that_worked_by_hand() -> None:
    found = mean_difference([1] * 8 + [0, 1, 0], [0] * 8 + [1, 1, 0])
    ours, theirs = 9 / 13, 2 / 13  # of two questions more, one won and one lost
    half = 1.959964 * ((ours + theirs - (ours - theirs) ** 2) / 13) ** 0.5
    assert (found.low, found.high) == pytest.approx((ours - theirs - half, ours - theirs + half))


@pytest.mark.parametrize("questions", [1, 2, 20])
def test_what_never_differs_is_not_known_to_be_the_same(questions: int) -> None:
    found = mean_difference([1] * questions, [1] * questions)
    assert found.low < -0.1
    assert found.high > 0.1
    assert estimate([0.5] * questions).low < 0.45


def test_only_questions_that_both_have_a_number_for_are_paired() -> None:
    found = paired_difference([1, None, 0, 1], [0, 1, None, 1])
    assert found is not None
    assert (found.value, found.n) == (0.5, 2)
    assert paired_difference([1, None], [None, 1]) is None


def test_holms_correction_is_that_worked_by_hand() -> None:
    each = [gap(0.01), gap(0.04), gap(0.03), gap(0.02), gap(0.9)]
    assert [round(one.p, 6) for one in holm(each)] == [0.05, 0.09, 0.09, 0.08, 0.9]
    assert holm([]) == []


def test_a_ratio_has_an_interval_by_questions() -> None:
    value, low, high = bootstrap_ratio([1] * 8 + [0] * 12, [1] * 16 + [0] * 4)
    assert value == pytest.approx(0.5)
    assert 0.2 < low < 0.35
    assert 0.65 < high < 0.8
    assert bootstrap_ratio([1, 0], [1, 0]) == (1, 1, 1)  # draws of the second alone have no way to go
