"""The plain scorers: the same text, the same number, a pattern, a choice. None of them asks a model."""

from __future__ import annotations

import re
from decimal import Decimal

from rl_conductor.errors import ConfigError
from rl_conductor.sandbox import Bounds, run_python
from rl_conductor.tasks.answers import choice, final, last_number, plain, same_number
from rl_conductor.tasks.base import Sample, Score, compared, wrong

SEARCH = "import re\nfound = re.search({pattern!r}, {text!r})\nprint(found.group(0) if found else '', end='')"


async def exact(sample: Sample, text: str) -> Score:
    """The announced answer is the right one, but for case, blanks and punctuation at its ends: `5!` passes for `5`."""
    answer = final(text)
    return compared(right=plain(answer) == plain(sample.answer), answer=answer, expected=sample.answer)


async def numeric(sample: Sample, text: str) -> Score:
    """The last number of the announced answer, else of the reply, is right to `details["tolerance"]` of its size."""
    found = last_number(final(text))
    found = last_number(text) if found is None else found
    tolerance = float(sample.details.get("tolerance", 1e-6))
    right = found is not None and same_number(found, Decimal(sample.answer.replace(",", "")), tolerance=tolerance)
    return compared(right=right, answer=None if found is None else str(found), expected=sample.answer)


async def regex(sample: Sample, text: str) -> Score:
    """The pattern `answer` is found in the reply. It is searched in the sandbox: a pattern may take for ever."""
    program = SEARCH.format(pattern=sample.answer, text=text)
    ran = await run_python(program, bounds=Bounds(seconds=5.0))
    if ran.status == "timeout":
        return wrong(None, f"the pattern {sample.answer!r} took too long on this reply")
    found = ran.output or None
    return compared(right=found is not None, answer=found, expected=sample.answer)


async def multiple_choice(sample: Sample, text: str) -> Score:
    """The reply settles on the right letter of `details["letters"]`."""
    found = choice(text, sample.details["letters"])
    return compared(right=found == sample.answer, answer=found, expected=sample.answer)


def checked_pattern(pattern: str) -> str:
    """`pattern` itself, once it is known to be one.

    Raises:
        ConfigError: it is none.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern
