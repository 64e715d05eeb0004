"""Equal questions, and groups of similar ones; results inside a group are not independent.

A group are the questions of one template, source or contrast set.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable

from rl_conductor.errors import ConfigError
from rl_conductor.scoring import Sample, Task
from rl_conductor.text.truncation import truncate_middle

_QUOTE = re.compile(r"\"[^\"]*\"|“[^“”]*”|'[^']*'(?!\w)")
_NUMBER = re.compile(r"\d[\d.,:]*")
_LETTERS = [chr(code) for code in range(0x0530)]  # of the Latin, Greek and Cyrillic scripts
_UPPER, _LOWER = "".join(filter(str.isupper, _LETTERS)), "".join(filter(str.islower, _LETTERS))
_NAME = re.compile(rf"(?<=[{_LOWER},;] )[{_UPPER}][\w'-]*(?: [{_UPPER}][\w'-]*)*")
_FINAL_PUNCTUATION = " ?!.:…？！。"
_NOUN_MARKER = re.compile(
    r"d(?:er|ie|as|en|em|es)|k?ein(?:e[nmrs]?)?|(?:welch|jed)e[nmrs]?|viele|im|am|zum|zur|vom|ins|ans", re.IGNORECASE
)
"""German words after which a capitalised word is a common noun, since names rarely follow them."""


def normalize_question(question: str) -> str:
    """Returns the text by which questions are compared: case, blanks and the form of Unicode make no difference."""
    return " ".join(unicodedata.normalize("NFC", question).casefold().split())


def hash_question(question: str) -> str:
    """Hashes a question to 16 hexadecimal digits; equal questions have the same hash, even with other ids."""
    return hashlib.sha256(normalize_question(question).encode()).hexdigest()[:16]


def shared_questions(samples: Iterable[Sample], others: Iterable[Sample]) -> list[str]:
    """Returns the questions of `samples` that are also among the others."""
    texts = {normalize_question(sample.question) for sample in others}
    return [sample.question for sample in samples if normalize_question(sample.question) in texts]


def count_different(samples: Iterable[Sample]) -> int:
    """Returns the number of questions without their copies."""
    return len({normalize_question(sample.question) for sample in samples})


def check_answers(task: Task) -> None:
    """Checks that equal questions have equal answers; those that a judge compares may differ in words.

    Raises:
        ConfigError: a question has two answers.
    """
    firsts: dict[str, tuple[int, Sample]] = {}
    for number, sample in enumerate(task.samples, start=1):
        first_number, first = firsts.setdefault(normalize_question(sample.question), (number, sample))
        is_judged = "judge" in sample.details or "judge" in first.details
        if not is_judged and normalize_question(first.answer) != normalize_question(sample.answer):
            question, *answers = (
                repr(truncate_middle(text, 60)) for text in (sample.question, first.answer, sample.answer)
            )
            raise ConfigError(
                f"questions {first_number} and {number} of {task.name!r} are the same, {question}, but have different "
                f"answers: {' and '.join(answers)}; remove one of the two"
            )


def group_of(sample: Sample) -> str:
    """Returns the sample's own group or contrast set, else the template of its question."""
    return str(sample.details.get("group") or sample.contrast or template(sample.question))


def template(question: str) -> str:
    """Masks quotes, numbers and names of a question, so that questions of one template become equal.

    Punctuation at the end makes no difference: people often leave it out, and a question is of the same kind without.
    """
    masked = _NAME.sub(_mask_name, _NUMBER.sub("<number>", _QUOTE.sub("<quote>", question)))
    words = " ".join(masked.lower().split())
    return words.rstrip(_FINAL_PUNCTUATION) or words


def _mask_name(match: re.Match[str]) -> str:
    """Masks capitalised words, but not a German noun after an article."""
    before = match.string[max(match.start() - 20, 0) : match.start()].split()
    return match[0] if before and _NOUN_MARKER.fullmatch(before[-1]) else "<name>"
