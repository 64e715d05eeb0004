from __future__ import annotations

import pytest

from rl_conductor_training.learn.contained_answers import describe_contained_answers
from rl_conductor_training.learn.experience import ExperienceRow
from rl_conductor_training.tasks import Sample


def rows(*answers: str | None, score: float = 0.0) -> list[ExperienceRow]:
    return [
        ExperienceRow(
            key=str(number),
            sample="1",
            question="What does it cost?",
            system="workflow",
            workflow=None,
            score=score,
            answer=answer,
            score_key=str(answer),
        )
        for number, answer in enumerate(answers)
    ]


def remarks(*results: ExperienceRow, scoring: str = "exact", expected: str = "30 Euro") -> list[str]:
    sample = Sample(id="1", question="What does it cost?", answer=expected, details={"scoring": scoring})
    return list(describe_contained_answers([sample], results))


def test_replies_around_the_right_answer_are_counted_once_each_with_an_example() -> None:
    (remark,) = remarks(*rows("It costs 30  euro now.", "Only 30 euro", "**30 Euro** each", "Only 30 euro", "no idea"))
    assert remark.startswith("3 of 4 different replies that count as wrong contain the right answer, such as 'It costs")
    assert "where '30 Euro' is right: if they are right, use the scoring 'judge'" in remark


@pytest.mark.parametrize("answer", ["130 euro", "30 euros", None, ""])
def test_a_part_of_a_word_is_no_answer(answer: str | None) -> None:
    assert remarks(*rows(*(f"{answer} {number}" if answer else answer for number in range(5)))) == []


def test_an_answer_of_punctuation_only_is_contained_in_nothing() -> None:
    assert remarks(*rows("no", "one", "knows"), expected="?!") == []


def test_a_few_among_many_wrong_replies_are_no_remark() -> None:
    others = [f"no {number}" for number in range(40)]
    assert remarks(*rows("is 30 euro", "or 30 euro", "at 30 euro", *others)) == []


def test_right_replies_and_other_scorings_are_no_remark() -> None:
    around = ["is 30 euro", "or 30 euro", "at 30 euro"]
    assert remarks(*rows(*around, score=1.0)) == []
    assert remarks(*rows(*around), scoring="numeric") == []
