"""Finds replies that count as wrong although they contain the right answer: the comparison may be too strict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rl_conductor.text.truncation import truncate_middle
from rl_conductor_training.learn.experience import ExperienceRow
from rl_conductor_training.tasks import Sample
from rl_conductor_training.tasks.scorers.accepted import accepted_answers
from rl_conductor_training.tasks.scorers.answers import contains_words

MIN_REPLIES, MIN_SHARE = 3, 0.1
"""Number of such replies, and their share of the wrong ones, from which a remark is made."""
QUOTED_CHARS = 60


def find_contained_answer(sample: Sample, text: str) -> str:
    """Returns the first line of a reply with an accepted answer of an exact comparison, shortened; empty without one.

    If the answer has several lines, the whole reply stands for the line.
    """
    if sample.details.get("scoring") != "exact":
        return ""
    answers = accepted_answers(sample)
    parts = [part for part in (*text.splitlines(), text) if any(contains_words(part, answer) for answer in answers)]
    return truncate_middle(parts[0], QUOTED_CHARS) if parts else ""


def describe_contained_answers(samples: Sequence[Sample], rows: Iterable[ExperienceRow]) -> Iterator[str]:
    """Yields a remark if many replies that an exact comparison found wrong contain the right answer."""
    answers = {sample.question: sample.answer for sample in samples if sample.details.get("scoring") == "exact"}
    wrong = {
        row.score_key: (row.contained_answer, answers[row.question])
        for row in sorted(rows, key=lambda row: row.created)
        if row.question in answers and row.answer and row.score == 0
    }
    contained = [(line, expected) for line, expected in wrong.values() if line]
    if len(contained) < max(MIN_REPLIES, MIN_SHARE * len(wrong)):
        return
    line, expected = contained[0][0], truncate_middle(contained[0][1], QUOTED_CHARS)
    yield (
        f"{len(contained):,} of {len(wrong):,} different replies that count as wrong contain the right answer, such as "
        f"{line!r}, where {expected!r} is right: if they are right, use the scoring 'includes', 'choice', 'numeric' or "
        "'judge', or tell the workers to reply with the answer only; experience.jsonl has all of them"
    )
