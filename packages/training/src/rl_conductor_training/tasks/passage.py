"""`Passage`: a piece of a library from which questions can be answered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Passage:
    """A piece of text and the title of the thing it describes."""

    title: str
    text: str
