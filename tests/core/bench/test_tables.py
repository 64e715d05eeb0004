from __future__ import annotations

import pytest

from core.bench.entrants import entrant, repeated, section
from rl_conductor.bench.runner import Entrant
from rl_conductor.bench.tables import Comparison, chosen, comparisons, line, ways


def compared(ours: Entrant, theirs: Entrant, *others: Entrant) -> Comparison:
    """The first two, in a bench in which `others` are compared too."""
    return comparisons(section(ours, theirs, *others), [theirs.system.name])[0]


def won(ours: int, theirs: int, of: int) -> Comparison:
    """So many questions on which one alone was right, of so many."""
    right = [1] * ours + [0] * (of - ours)
    wrong = [0] * ours + [1] * theirs + [0] * (of - ours - theirs)
    return compared(entrant("ours", right), entrant("theirs", wrong))


@pytest.mark.parametrize(
    ("ours", "theirs", "of", "said"),
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
def test_what_chance_alone_may_do_is_no_gain(ours: int, theirs: int, of: int, said: str) -> None:
    assert won(ours, theirs, of).verdict == said


def test_nothing_is_claimed_against_one_that_knows_the_answers() -> None:
    peeking = entrant("oracle", [1] * 20, peeks=True)
    assert compared(peeking, entrant("theirs", [0] * 20)).verdict == "peeks"


def test_the_more_systems_are_compared_the_less_chance_may_have_done() -> None:
    ours, theirs = entrant("ours", [1] * 6 + [0] * 18), entrant("theirs", [0] * 24)
    alike = [entrant(f"other{number}", [0] * 24) for number in range(4)]
    assert compared(ours, theirs).verdict == "gain"
    among = compared(ours, theirs, *alike)
    assert among.difference.p == pytest.approx(5 * 2 / 2**6)
    assert among.verdict == "not shown"


def test_each_pair_is_compared_once() -> None:
    found = comparisons(section(*(entrant(name, [0, 1]) for name in "abc")), ["a", "b", "gone"])
    assert [(one.system, one.against) for one in found] == [("b", "a"), ("c", "a"), ("c", "b")]


VALID = [True] * 12 + [False] * 12
"""Plans for half of the questions."""


def test_more_right_answers_by_more_valid_plans_alone_are_no_gain() -> None:
    ours = entrant("ours", [1] * 24, valid=[True] * 24)
    theirs = entrant("theirs", [1] * 12 + [0] * 12, valid=VALID)
    found = compared(ours, theirs)
    assert found.given_valid is not None
    assert (found.given_valid.value, found.given_valid.n) == (0, 12)
    assert found.verdict == "validity only"


def test_leaving_out_the_hard_questions_is_no_better_planning() -> None:
    hard, easy = 12, 12
    ours = entrant("ours", [1] * easy + [0] * hard, valid=[True] * easy + [False] * hard)
    theirs = entrant("theirs", [0.2] * easy + [0] * hard, valid=[False] * easy + [True] * hard)
    found = compared(ours, theirs)
    assert found.difference.sure
    assert found.given_valid is None  # there is no question that both had a plan for
    assert found.verdict == "not shown"  # as many valid plans as the other


def test_one_that_writes_no_plans_can_not_be_beaten_by_valid_ones() -> None:
    ours = entrant("ours", [0] * 12 + [1] * 12, valid=[True] * 12 + [False] * 12)
    found = compared(ours, entrant("single", [0] * 24))
    assert (found.difference.sure, found.valid) == (True, None)
    assert found.verdict == "not shown"


def test_a_gain_is_also_one_where_both_plans_are_valid() -> None:
    ours = entrant("ours", [1] * 24, valid=[True] * 24)
    theirs = entrant("theirs", [0] * 24, valid=VALID)
    found = compared(ours, theirs)
    assert found.given_valid is not None
    assert (found.given_valid.value, found.given_valid.n, found.verdict) == (1, 12, "gain")


def test_the_repetitions_of_a_question_with_valid_plans_count_as_one_mean_however_many_they_are() -> None:
    ours = repeated("ours", [[1, 1, 1], [0], []])
    theirs = repeated("theirs", [[1], [0, 0, 1], [1]])
    assert [column and column.value for column in (line(one).given_valid for one in (ours, theirs))] == [
        0.5,
        pytest.approx(7 / 9),
    ]
    found = compared(ours, theirs).given_valid
    assert found is not None
    assert found.value == pytest.approx(-1 / 6)
    assert found.n == 2


def test_the_way_to_the_oracle_is_a_share_of_the_distance_from_the_best_single_worker() -> None:
    single, ours = entrant("single", [1] * 6 + [0] * 18), entrant("ours", [1] * 18 + [0] * 6)
    ran = section(single, ours, entrant("poor", [1] * 7 + [0] * 17), entrant("oracle", [1] * 24, peeks=True))
    (way,) = ways(ran, comparisons(ran, ["single"]), single="single", oracle="oracle")
    assert way.system == "ours"
    assert way.value == pytest.approx(2 / 3)
    assert 0.3 < way.low < 0.5
    assert 0.8 < way.high < 1


def test_there_is_no_way_to_an_oracle_that_is_no_better() -> None:
    ran = section(entrant("single", [0] * 12), entrant("ours", [1] * 12), entrant("oracle", [0] * 12, peeks=True))
    assert not ways(ran, comparisons(ran, ["single"]), single="single", oracle="oracle")


def test_steps_by_depth_are_means_of_questions() -> None:
    rows = entrant("ours", [1, 1, 1], workers="aab").rows
    longer = rows[0].model_copy(update={"steps": 4})
    found = line(Entrant(entrant("ours", [1]).system, (longer, *rows[1:])))
    assert found.steps_by_depth == {1: 3.5, 2: 3}


def test_who_is_chosen_for_what_is_a_share_of_steps() -> None:
    assert chosen(entrant("ours", [1, 1], workers="aab")) == {
        "sums": {"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)}
    }
