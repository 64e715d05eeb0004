"""Finding the answer in a reply, and comparing it: text, numbers, patterns, choices. Pure and small.

What is found is kept in the `Score`, so that a wrong grade can be seen.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?")
# Possessive, since a reply may hold thousands of blanks after "answer" and must not make us try every split of them.
_FINAL = re.compile(r"answer\s*+(?:is|:)[\s:*]*+(.+)", re.IGNORECASE)
_MOST_DIGITS = 100_000
"""Before the point of a number: arithmetic with more of them fails."""
_MARKS = " .,;:!?'\"`*"
_ONES: tuple[str, ...] = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
_ONES += ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


# ---------------------------------------------------------------------------------------- finding


def boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds; `None` without one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for place in range(begin, len(text)):
        if text[place] == "}" and depth == 0:
            return text[begin:place].strip()
        depth += {"{": 1, "}": -1}.get(text[place], 0)
    return None


def final(text: str) -> str:
    """The answer as a reply announces it: boxed, after "answer is" or "answer:", else its last line."""
    inside = boxed(text)
    if inside is not None:
        return inside
    announced = _FINAL.findall(text)
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return (announced[-1] if announced else lines[-1] if lines else "").strip().strip("*`")


def last_number(text: str) -> Decimal | None:
    """The last number in `text`, thousands separators read; `None` when there is none."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    try:
        number = Decimal(found[-1].replace(",", ""))
    except InvalidOperation:  # an exponent beyond what any number has
        return None
    return number if number.adjusted() < _MOST_DIGITS else None


def choice(text: str, letters: str) -> str | None:
    """The letter of `letters` that a reply settles on, in a box before all; `None` when it settles on none."""
    alone = re.fullmatch(rf"\W*([{letters}])\W*", boxed(text) or text, re.IGNORECASE)
    announced = _announced(letters).findall(text)
    first = re.match(rf"[\s*(]*([{letters}])[).:*]", text)
    found = alone[1] if alone else announced[-1] if announced else first[1] if first else None
    return None if found is None else found.upper()


def _announced(letters: str) -> re.Pattern[str]:
    """What follows "answer is" or "answer:"; a small letter before another word is an article, not a choice."""
    return re.compile(rf"(?i:answer\s*+(?:is|:)?)[\s:*(]*+([{letters}]\b|[{letters.lower()}]\b(?! +\w))")


# -------------------------------------------------------------------------------------- comparing


def plain(text: str) -> str:
    """`text` without case, punctuation at its ends and doubled blanks; the point of `.5` is part of a number."""
    words = " ".join(text.lower().split()).rstrip(_MARKS)
    bare = words.lstrip(_MARKS)
    point = "." if bare[:1].isdigit() and words.removesuffix(bare).endswith(".") else ""
    return point + bare


def same_number(one: Decimal, other: Decimal, *, tolerance: float = 1e-6) -> bool:
    """Whether two numbers differ by no more than `tolerance` of the larger."""
    if not (one.is_finite() and other.is_finite()):
        return False
    return abs(one - other) <= Decimal(tolerance) * max(abs(one), abs(other))


def same_words(said: str, wanted: str) -> bool:
    """Whether `said` is `wanted` but for hyphens, quotes and a full stop; case counts."""
    return said.strip(" .\n'\"`*").replace("-", " ").split() == wanted.replace("-", " ").split()


def spelled(number: int) -> str:
    """A number from 0 to 999 in English words."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_ONES[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{_ONES[hundreds]} hundred" + (f" and {spelled(rest)}" if rest else "")
