from __future__ import annotations

import pytest

from rl_conductor_training.learn.contained_answers import describe_contained_answers, find_contained_answer
from rl_conductor_training.learn.experience import ExperienceRow
from rl_conductor_training.tasks import Sample


def rows(*replies: str | None, score: float = 0.0, expected: str = "30 Euro") -> list[ExperienceRow]:
    return [
        ExperienceRow(
            key=str(number),
            sample="1",
            question="What does it cost?",
            system="workflow",
            workflow=None,
            score=score,
            answer=reply and reply.splitlines()[-1],
            contained_answer=find_contained_answer(question(expected), reply or ""),
            score_key=str(reply),
        )
        for number, reply in enumerate(replies)
    ]


def question(expected: str, scoring: str = "exact") -> Sample:
    return Sample(id="1", question="What does it cost?", answer=expected, details={"scoring": scoring})


def remarks(*results: ExperienceRow, scoring: str = "exact", expected: str = "30 Euro") -> list[str]:
    return list(describe_contained_answers([question(expected, scoring)], results))


def test_replies_around_the_right_answer_are_counted_once_each_with_an_example() -> None:
    (remark,) = remarks(*rows("It costs 30  euro now.", "Only 30 euro", "**30 Euro** each", "Only 30 euro", "no idea"))
    assert remark.startswith("3 of 4 different replies that count as wrong contain the right answer, such as 'It costs")
    assert "where '30 Euro' is right: if they are right, use the scoring 'includes'" in remark


def test_an_answer_before_the_last_line_of_a_reply_is_contained() -> None:
    around = [f"It costs 30 euro.\n\nDo you have {number} other questions?" for number in range(3)]
    (remark,) = remarks(*rows(*around))
    assert remark.startswith("3 of 3 different replies that count as wrong contain the right answer, such as 'It costs")


def test_any_accepted_answer_and_one_of_several_lines_is_contained() -> None:
    several = Sample(id="1", question="?", answer="NYC", details={"scoring": "exact", "accepted": ["NYC", "New York"]})
    assert find_contained_answer(several, "Well.\nIt is New York.\nBye!") == "It is New York."
    assert find_contained_answer(question("Peru\nCuba"), "They are\nPeru\nCuba\nBye") == "They are\nPeru\nCuba\nBye"
    assert find_contained_answer(question("Peru", scoring="numeric"), "It is Peru") == ""


@pytest.mark.parametrize("answer", ["130 euro", "30 euros", None, ""])
def test_a_part_of_a_word_is_no_answer(answer: str | None) -> None:
    assert remarks(*rows(*(f"{answer} {number}" if answer else answer for number in range(5)))) == []


def test_an_answer_of_punctuation_only_is_contained_in_nothing() -> None:
    assert remarks(*rows("no", "one", "knows", expected="?!"), expected="?!") == []


def test_a_few_among_many_wrong_replies_are_no_remark() -> None:
    others = [f"no {number}" for number in range(40)]
    assert remarks(*rows("is 30 euro", "or 30 euro", "at 30 euro", *others)) == []


def test_right_replies_and_other_scorings_are_no_remark() -> None:
    around = ["is 30 euro", "or 30 euro", "at 30 euro"]
    assert remarks(*rows(*around, score=1.0)) == []
    assert remarks(*rows(*around), scoring="numeric") == []
