"""Compares two texts word by word. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from rl_conductor.trace import Trace
from rl_conductor_server.web.run_view import RunView

MAX_WORDS = 4_000
"""Longer texts are compared line by line."""
MAX_LINES = 4_000
"""Longer texts are not compared."""
WORDS, LINES = re.compile(r"\s+|[^\s]+"), re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True)
class Change:
    """A part of a text, and whether only one of the texts has it."""

    kind: Literal["same", "removed", "added"]
    text: str


@dataclass(frozen=True)
class TextDiff:
    """The comparison of one text of two runs."""

    name: str
    changes: tuple[Change, ...] | None
    """`None` if the texts are too long to compare."""

    @property
    def is_same(self) -> bool:
        return self.changes is not None and all(change.kind == "same" for change in self.changes)


def compare_runs(first: RunView, second: RunView) -> tuple[TextDiff, ...]:
    """Compares the questions, plans and answers of two runs; texts that both lack are left out.

    As long as one of them has no trace, the excerpts of the questions are compared, and no answers.
    """
    texts = {"Question": (first.row.question, second.row.question), "Plan": (_plan(first), _plan(second))}
    if first.trace is not None and second.trace is not None:
        texts |= {
            "Question": (_question(first.trace), _question(second.trace)),
            "Answer": (first.answer, second.answer),
        }
    return tuple(TextDiff(name, diff(*pair)) for name, pair in texts.items() if any(pair))


def diff(first: str, second: str) -> tuple[Change, ...] | None:
    """Returns the parts of both texts in order; `None` if one is too long."""
    for pattern, limit in ((WORDS, MAX_WORDS), (LINES, MAX_LINES)):
        old, new = (_split(pattern, text, limit) for text in (first, second))
        if old is not None and new is not None:
            return tuple(_changes(old, new))
    return None


def _split(pattern: re.Pattern[str], text: str, limit: int) -> list[str] | None:
    parts: list[str] = []
    for match in pattern.finditer(text):
        if len(parts) == limit:
            return None
        parts.append(match[0])
    return parts


def _changes(old: Sequence[str], new: Sequence[str]) -> Iterator[Change]:
    for kind, start, end, new_start, new_end in SequenceMatcher(None, old, new).get_opcodes():
        if kind == "equal":
            yield Change("same", "".join(old[start:end]))
            continue
        if start < end:
            yield Change("removed", "".join(old[start:end]))
        if new_start < new_end:
            yield Change("added", "".join(new[new_start:new_end]))


def _question(trace: Trace) -> str:
    return "\n\n".join(f"{message.role}: {message.text}" for message in trace.request.messages)


def _plan(run: RunView) -> str:
    return "\n".join(
        f"{step.index + 1}. {step.step.worker}: {step.step.subtask}" for round_ in run.rounds for step in round_.steps
    )
