"""Finds replies that count as wrong although they contain the right answer: the comparison may be too strict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rl_conductor.text.truncation import truncate_middle
from rl_conductor_training.learn.experience import ExperienceRow
from rl_conductor_training.tasks import Sample
from rl_conductor_training.tasks.scorers.answers import normalize_text

MIN_REPLIES, MIN_SHARE = 3, 0.1
"""Number of such replies, and their share of the wrong ones, from which a remark is made."""
QUOTED_CHARS = 60


def describe_contained_answers(samples: Sequence[Sample], rows: Iterable[ExperienceRow]) -> Iterator[str]:
    """Yields a remark if many replies that an exact comparison found wrong contain the right answer."""
    answers = {sample.question: sample.answer for sample in samples if sample.details.get("scoring") == "exact"}
    wrong = {
        row.score_key: (row.answer, answers[row.question])
        for row in sorted(rows, key=lambda row: row.created)
        if row.question in answers and row.answer and row.score == 0
    }
    contained = [(reply, expected) for reply, expected in wrong.values() if _contains(reply, expected)]
    if len(contained) < max(MIN_REPLIES, MIN_SHARE * len(wrong)):
        return
    reply, expected = (truncate_middle(text, QUOTED_CHARS) for text in contained[0])
    yield (
        f"{len(contained):,} of {len(wrong):,} different replies that count as wrong contain the right answer, such as "
        f"{reply!r}, where {expected!r} is right: if they are right, use the scoring 'judge', 'regex' or 'numeric', or "
        "tell the workers to reply with the answer only; experience.jsonl has all of them"
    )


def _contains(reply: str, expected: str) -> bool:
    """Whether a text contains another as whole words."""
    words = normalize_text(expected)
    return bool(words) and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", normalize_text(reply)) is not None
