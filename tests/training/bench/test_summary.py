from __future__ import annotations

import pytest

from rl_conductor_training.bench.runner import SystemResult
from rl_conductor_training.bench.summary import Comparison, compare_systems, gaps_closed, summarize, worker_shares
from training.bench.system_results import system_result, system_result_with_repeats, task_result


def compared(ours: SystemResult, theirs: SystemResult, *others: SystemResult) -> Comparison:
    """The first two, in a bench in which `others` are compared too."""
    return compare_systems(task_result(ours, theirs, *others), [theirs.system.name])[0]


def won(ours: int, theirs: int, of: int) -> Comparison:
    """Compares two systems: the number of questions that only one answered, of a total."""
    right = [1] * ours + [0] * (of - ours)
    wrong = [0] * ours + [1] * theirs + [0] * (of - ours - theirs)
    return compared(system_result("ours", right), system_result("theirs", wrong))


@pytest.mark.parametrize(
    ("ours", "theirs", "of", "verdict"),
    [
        (1, 0, 1, "not shown"),
        (2, 0, 2, "not shown"),
        (4, 0, 20, "not shown"),  # p = 0.125
        (5, 0, 24, "not shown"),  # p = 0.0625
        (6, 0, 24, "gain"),  # p = 0.03125
        (0, 6, 24, "loss"),
        (8, 1, 11, "gain"),
        (8, 4, 24, "not shown"),
        (0, 0, 20, "not shown"),
    ],
)
def test_an_insignificant_difference_is_not_a_gain(ours: int, theirs: int, of: int, verdict: str) -> None:
    assert won(ours, theirs, of).verdict == verdict


def test_nothing_is_claimed_against_a_system_that_sees_the_answers() -> None:
    peeking = system_result("oracle", [1] * 20, sees_answers=True)
    assert compared(peeking, system_result("theirs", [0] * 20)).verdict == "sees answers"


def test_p_values_are_adjusted_for_the_number_of_comparisons() -> None:
    ours, theirs = system_result("ours", [1] * 6 + [0] * 18), system_result("theirs", [0] * 24)
    alike = [system_result(f"other{number}", [0] * 24) for number in range(4)]
    assert compared(ours, theirs).verdict == "gain"
    among = compared(ours, theirs, *alike)
    assert among.difference.p == pytest.approx(5 * 2 / 2**6)
    assert among.verdict == "not shown"


def test_each_pair_is_compared_once() -> None:
    comparisons = compare_systems(task_result(*(system_result(name, [0, 1]) for name in "abc")), ["a", "b", "gone"])
    assert [(each.system, each.against) for each in comparisons] == [("b", "a"), ("c", "a"), ("c", "b")]


VALID = [True] * 12 + [False] * 12
"""Plans for half of the questions."""


def test_a_gain_from_validity_alone_is_reported_as_such() -> None:
    ours = system_result("ours", [1] * 24, valid=[True] * 24)
    theirs = system_result("theirs", [1] * 12 + [0] * 12, valid=VALID)
    comparison = compared(ours, theirs)
    assert comparison.difference_if_valid is not None
    assert (comparison.difference_if_valid.value, comparison.difference_if_valid.n) == (0, 12)
    assert comparison.verdict == "validity only"


def test_invalid_plans_on_hard_questions_are_not_a_gain() -> None:
    hard, easy = 12, 12
    ours = system_result("ours", [1] * easy + [0] * hard, valid=[True] * easy + [False] * hard)
    theirs = system_result("theirs", [0.2] * easy + [0] * hard, valid=[False] * easy + [True] * hard)
    comparison = compared(ours, theirs)
    assert comparison.difference.significant
    assert comparison.difference_if_valid is None  # there is no question that both had a plan for
    assert comparison.verdict == "not shown"  # as many valid plans as the other


def test_a_system_without_plans_has_no_difference_in_validity() -> None:
    ours = system_result("ours", [0] * 12 + [1] * 12, valid=[True] * 12 + [False] * 12)
    comparison = compared(ours, system_result("single", [0] * 24))
    assert (comparison.difference.significant, comparison.validity_difference) == (True, None)
    assert comparison.verdict == "not shown"


def test_a_gain_holds_where_both_plans_are_valid_too() -> None:
    ours = system_result("ours", [1] * 24, valid=[True] * 24)
    theirs = system_result("theirs", [0] * 24, valid=VALID)
    comparison = compared(ours, theirs)
    assert comparison.difference_if_valid is not None
    assert (comparison.difference_if_valid.value, comparison.difference_if_valid.n, comparison.verdict) == (
        1,
        12,
        "gain",
    )


def test_repetitions_with_valid_plans_count_as_one_mean_per_question() -> None:
    ours = system_result_with_repeats("ours", [[1, 1, 1], [0], []])
    theirs = system_result_with_repeats("theirs", [[1], [0, 0, 1], [1]])
    assert [
        column and column.value for column in (summarize(system).accuracy_if_valid for system in (ours, theirs))
    ] == [
        0.5,
        pytest.approx(7 / 9),
    ]
    difference = compared(ours, theirs).difference_if_valid
    assert difference is not None
    assert difference.value == pytest.approx(-1 / 6)
    assert difference.n == 2


def test_the_gap_closed_is_a_share_of_the_gap_to_the_oracle() -> None:
    single, ours = system_result("single", [1] * 6 + [0] * 18), system_result("ours", [1] * 18 + [0] * 6)
    ran = task_result(
        single, ours, system_result("poor", [1] * 7 + [0] * 17), system_result("oracle", [1] * 24, sees_answers=True)
    )
    (gap,) = gaps_closed(ran, compare_systems(ran, ["single"]), single="single", oracle="oracle")
    assert gap.system == "ours"
    assert gap.value == pytest.approx(2 / 3)
    assert 0.3 < gap.low < 0.5
    assert 0.8 < gap.high < 1


def test_there_is_no_gap_to_an_oracle_that_is_not_better() -> None:
    ran = task_result(
        system_result("single", [0] * 12),
        system_result("ours", [1] * 12),
        system_result("oracle", [0] * 12, sees_answers=True),
    )
    assert not gaps_closed(ran, compare_systems(ran, ["single"]), single="single", oracle="oracle")


def test_steps_by_depth_are_means_over_questions() -> None:
    results = system_result("ours", [1, 1, 1], workers="aab").results
    longer = results[0].model_copy(update={"steps": 4})
    summary = summarize(SystemResult(system_result("ours", [1]).system, (longer, *results[1:])))
    assert summary.steps_by_depth == {1: 3.5, 2: 3}


def test_worker_shares_are_shares_of_steps() -> None:
    assert worker_shares(system_result("ours", [1, 1], workers="aab")) == {
        "sums": {"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)}
    }
