"""The scorer of mathematical answers: math-verify compares values, so that 1/2 equals 0.5."""

from __future__ import annotations

from rl_conductor.scoring import Sample, Score, compared, wrong
from rl_conductor_training.tasks.scorers.answers import extract_final_answer
from rl_conductor_training.tasks.scorers.checker_process import CheckerProcess

_checker = CheckerProcess("rl_conductor_training.tasks.scorers.math_check:compare_values")


async def math_equal(sample: Sample, text: str) -> Score:
    """Scores 1 when the announced answer has the right value, however it is written."""
    answer = extract_final_answer(text)
    if answer and _normalize(answer) == _normalize(sample.answer):
        return compared(right=True, answer=answer, expected=sample.answer)
    try:
        is_equal, formula = await _checker.call(expected=sample.answer, reply=text)
    except ValueError as error:
        return wrong(answer or None, str(error))
    return compared(right=is_equal, answer=formula, expected=sample.answer)


def _normalize(answer: str) -> str:
    """Removes repeated blanks and a full stop only: other punctuation can mean something, as in `5!`."""
    return " ".join(answer.split()).removesuffix(".")
