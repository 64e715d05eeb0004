from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy.stats import t

from rl_conductor_training.statistics import (
    Difference,
    bootstrap_ratio,
    estimate,
    fewest_groups,
    holm,
    mean_difference,
    paired_difference,
    sign_flip_test,
)


def gap(p: float) -> Difference:
    return Difference(value=0.1, low=0.01, high=0.2, p=p, n=9)


def test_a_share_has_its_standard_error_and_wilson_interval() -> None:
    result = estimate([1, 1, 1, 0])
    assert result.value == 0.75
    assert result.error == pytest.approx(0.25)
    assert result.low == pytest.approx(0.3006, abs=1e-4)
    assert result.high == pytest.approx(0.9544, abs=1e-4)
    assert estimate([1, 1, 1]).low < 0.5  # all of three right is no proof of being always right


def test_the_standard_error_is_clustered_by_question() -> None:
    result = estimate([0.5, 1.0, 0.0, 0.5])  # means of two repetitions each
    assert result.error == pytest.approx((1 / 6) ** 0.5 / 2)
    assert 0 <= result.low < 0.5 < result.high <= 1


def test_the_mean_of_no_questions_is_rejected() -> None:
    with pytest.raises(ValueError, match="no questions"):
        estimate([])


def test_mcnemars_test_matches_a_manual_calculation() -> None:
    result = mean_difference([1] * 8 + [0, 1, 0], [0] * 8 + [1, 1, 0])
    assert result.value == pytest.approx(7 / 11)
    assert result.p == pytest.approx(2 * (1 + 9) / 2**9)  # 8 against 1 of 9 that differ, both tails
    assert result.low > 0
    assert result.significant


def test_equal_systems_do_not_differ_significantly() -> None:
    result = mean_difference([1, 0, 1], [1, 0, 1])
    assert (result.value, result.p, result.significant) == (0, 1, False)


def test_repetitions_that_disagree_use_the_sign_flip_test() -> None:
    result = mean_difference([0.5, 1.0, 0.5, 1.0], [0.0, 0.5, 0.0, 0.5])
    assert result.p == pytest.approx(2 / 2**4)


def test_a_single_disagreeing_repetition_is_not_significant() -> None:
    assert mean_difference([0.5, 1], [0, 1]).p == 1


def test_sign_flips_are_enumerated_or_sampled_conservatively() -> None:
    assert sign_flip_test(np.full(13, 0.5)) == pytest.approx(2 / 2**13)
    assert 2 / 2**14 < sign_flip_test(np.full(14, 0.5)) < 0.001


@pytest.mark.parametrize("tests", [1, 3, 6, 10])
def test_with_fewer_groups_no_test_can_be_significant(tests: int) -> None:
    def best(groups: int) -> Difference:
        scores = np.repeat([1.0], groups * 2).tolist()
        names = [str(number // 2) for number in range(groups * 2)]
        return holm([mean_difference(scores, [0.0] * len(scores), names), *[gap(1)] * (tests - 1)])[0]

    assert best(fewest_groups(tests)).significant
    assert not best(fewest_groups(tests) - 1).significant


def test_thousands_of_questions_need_little_memory() -> None:
    ours, theirs = (np.random.default_rng(seed).choice([0, 0.5, 1], size=3000).tolist() for seed in (1, 2))
    tracemalloc.start()
    try:
        mean_difference(ours, theirs)
        bootstrap_ratio(ours, theirs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000_000


def test_ties_change_the_interval_but_not_p() -> None:
    few, many = (mean_difference([1] * 8 + [1] * more, [0] * 8 + [1] * more) for more in (2, 92))
    assert few.p == many.p
    assert many.high < few.low


def test_the_paired_interval_matches_a_manual_calculation() -> None:
    result = mean_difference([1] * 8 + [0, 1, 0], [0] * 8 + [1, 1, 0])
    ours, theirs = 9 / 13, 2 / 13  # of two questions more, one won and one lost
    half = 1.959964 * ((ours + theirs - (ours - theirs) ** 2) / 13) ** 0.5
    assert (result.low, result.high) == pytest.approx((ours - theirs - half, ours - theirs + half))


@pytest.mark.parametrize("questions", [1, 2, 20])
def test_systems_without_differences_still_have_an_interval(questions: int) -> None:
    result = mean_difference([1] * questions, [1] * questions)
    assert result.low < -0.1
    assert result.high > 0.1
    assert estimate([0.5] * questions).low < 0.45


def test_only_questions_with_both_values_are_paired() -> None:
    result = paired_difference([1, None, 0, 1], [0, 1, None, 1])
    assert result is not None
    assert (result.value, result.n) == (0.5, 2)
    assert paired_difference([1, None], [None, 1]) is None


def test_holms_correction_matches_a_manual_calculation() -> None:
    each = [gap(0.01), gap(0.04), gap(0.03), gap(0.02), gap(0.9)]
    assert [round(difference.p, 6) for difference in holm(each)] == [0.05, 0.09, 0.09, 0.08, 0.9]
    assert holm([]) == []


def test_a_ratio_has_a_bootstrap_interval_over_questions() -> None:
    value, low, high = bootstrap_ratio([1] * 8 + [0] * 12, [1] * 16 + [0] * 4)
    assert value == pytest.approx(0.5)
    assert 0.2 < low < 0.35
    assert 0.65 < high < 0.8
    assert bootstrap_ratio([1, 0], [1, 0]) == (1, 1, 1)  # draws of the second alone have no way to go


# ------------------------------------------------------------------------------------- groups of questions


def test_groups_of_one_change_nothing() -> None:
    ours, theirs, names = [1, 0, 1, 1, 0.5], [0, 0, 1, 0, 0], list("abcde")
    assert estimate(ours, names) == estimate(ours)
    assert mean_difference(ours, theirs, names) == mean_difference(ours, theirs)
    assert bootstrap_ratio(ours, [1] * 5, names) == bootstrap_ratio(ours, [1] * 5)


def test_equal_copies_of_questions_add_no_certainty() -> None:
    questions, copies = [1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    groups = list("aabbccdd")
    independent, copied, clustered = estimate(questions), estimate(copies), estimate(copies, groups)
    assert (clustered.n, clustered.groups) == (8, 4)
    assert clustered.error == pytest.approx(independent.error)
    assert copied.error is not None
    assert clustered.error is not None
    assert copied.error < clustered.error
    assert clustered.high - clustered.low > copied.high - copied.low


def test_the_clustered_error_matches_a_manual_calculation() -> None:
    result = estimate([1, 1, 1, 0, 0], ["a", "a", "b", "b", "c"])  # mean 0.6
    residuals = [2 - 2 * 0.6, 1 - 2 * 0.6, 0 - 0.6]
    assert result.error == pytest.approx((3 / 2 * sum(value**2 for value in residuals)) ** 0.5 / 5)


def test_groups_of_questions_are_flipped_together() -> None:
    ours, theirs = [1] * 8, [0] * 8
    assert mean_difference(ours, theirs).p == pytest.approx(2 / 2**8)
    assert mean_difference(ours, theirs, list("aabbccdd")).p == pytest.approx(2 / 2**4)
    assert mean_difference(ours, theirs, list("aaaabbbb")).significant is False


def test_groups_that_all_agree_still_have_an_interval() -> None:
    assert estimate([1.0] * 12, list("aaaabbbbcccc")).low < estimate([1.0] * 12).low


def test_the_interval_of_groups_is_hardly_wider_than_students() -> None:
    gaps = [1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, -1, 1, 0, 0]
    groups = [str(index // 3) for index in range(len(gaps))]
    difference = mean_difference([max(gap, 0) for gap in gaps], [max(-gap, 0) for gap in gaps], groups)
    means = np.reshape(gaps, (6, 3)).mean(axis=1)
    width = 2 * t.ppf(0.975, 5) * means.std(ddof=1) / np.sqrt(6)
    assert width < difference.high - difference.low < 1.3 * width


def test_a_single_group_says_nothing_about_others() -> None:
    estimated = estimate([1, 1, 0, 1], ["a"] * 4)
    assert (estimated.value, estimated.error, estimated.low, estimated.high) == (0.75, None, 0.0, 1.0)


def test_paired_questions_keep_their_groups() -> None:
    result = paired_difference([1, None, 1, 1], [0, 1, 0, 0], ["a", "a", "b", "b"])
    assert result == mean_difference([1, 1, 1], [0, 0, 0], ["a", "b", "b"])


def test_a_ratio_draws_whole_groups() -> None:
    ours, oracle = [1, 1, 0, 0, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]
    _, low, high = bootstrap_ratio(ours, oracle)
    _, wide_low, wide_high = bootstrap_ratio(ours, oracle, list("aabbccdd"))
    assert wide_low < low < high < wide_high
