"""Scorers without a model: the same or contained text, the same number, a regular expression, a label or letter."""

from __future__ import annotations

from decimal import Decimal

from rl_conductor.scoring import Sample, Score, compared, wrong
from rl_conductor_training.sandbox.sandbox import ResourceLimits, run_python
from rl_conductor_training.tasks.scorers.answers import (
    contains_words,
    extract_choice,
    extract_final_answer,
    extract_final_lines,
    extract_label,
    extract_last_number,
    join_digit_groups,
    normalize_text,
    numbers_match,
)

SEARCH = "import re\nfound = re.search({pattern!r}, {text!r})\nprint('=' + found.group(0) if found else '', end='')"
"""Prints the match after a mark, since it may be empty."""


async def exact(sample: Sample, text: str) -> Score:
    """Compares the announced answer, ignoring case, blanks and punctuation at its ends: `5!` passes for `5`.

    The whole reply is compared as well, since the right answer may itself have several lines or the word "answer:".
    """
    extract = extract_final_lines if "\n" in sample.answer.strip() else extract_final_answer
    answer, expected = extract(text), normalize_text(sample.answer)
    return compared(
        right=expected in (normalize_text(answer), normalize_text(text)), answer=answer, expected=sample.answer
    )


async def includes(sample: Sample, text: str) -> Score:
    """Searches the reply for the answer as whole words, ignoring case."""
    is_right = contains_words(text, sample.answer)
    return compared(
        right=is_right, answer=sample.answer if is_right else extract_final_answer(text), expected=sample.answer
    )


async def numeric(sample: Sample, text: str) -> Score:
    """Compares the last number of the announced answer, else of the reply, within `details["tolerance"]`."""
    number = extract_last_number(join_digit_groups(extract_final_answer(text)))
    number = extract_last_number(text) if number is None else number
    tolerance = float(sample.details.get("tolerance", 1e-6))
    is_right = number is not None and numbers_match(
        number, Decimal(sample.answer.replace(",", "")), tolerance=tolerance
    )
    return compared(right=is_right, answer=None if number is None else str(number), expected=sample.answer)


async def regex(sample: Sample, text: str) -> Score:
    """Searches the reply for the pattern `sample.answer`, in the sandbox because a pattern may never terminate."""
    program = SEARCH.format(pattern=sample.answer, text=text)
    result = await run_python(program, limits=ResourceLimits(seconds=5.0))
    if result.status == "timeout":
        return wrong(None, f"the pattern {sample.answer!r} took too long on this reply")
    match = result.output.removeprefix("=") if result.output else None
    return compared(right=match is not None, answer=match, expected=sample.answer)


async def choice(sample: Sample, text: str) -> Score:
    """Compares the label that the reply chooses among `details["choices"]`."""
    label = extract_label(text, sample.details["choices"])
    is_right = label is not None and normalize_text(label) == normalize_text(sample.answer)
    return compared(right=is_right, answer=label, expected=sample.answer)


async def multiple_choice(sample: Sample, text: str) -> Score:
    """Compares the letter that the reply chooses among `details["letters"]`."""
    letter = extract_choice(text, sample.details["letters"])
    return compared(right=letter == sample.answer, answer=letter, expected=sample.answer)
