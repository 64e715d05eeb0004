"""`ReplyPieces`: passes a streamed reply on in a bounded number of pieces, because listeners keep an event for each."""

from __future__ import annotations

from collections.abc import Callable

MAX_SMALL_PIECES = 16_384
"""Number of pieces, usually tokens, that are passed on as they come; few answers have as many."""
MIN_LATE_CHARS = 256
"""Minimum characters of the pieces after those."""


class ReplyPieces:
    """Passes the reasoning and the text of a reply on, in the order in which they come."""

    def __init__(self, on_text: Callable[[str], None], on_reasoning: Callable[[str], None] | None) -> None:
        self._text = PieceMerger(on_text)
        self._reasoning = on_reasoning and PieceMerger(on_reasoning)

    def add(self, text: str, reasoning: str) -> None:
        """Adds pieces, of which the reasoning comes first."""
        if reasoning and self._reasoning is not None:
            self._reasoning.add(reasoning)
        if text:
            if self._reasoning is not None:
                self._reasoning.end()
            self._text.add(text)

    def end(self) -> None:
        """Passes on the waiting pieces."""
        if self._reasoning is not None:
            self._reasoning.end()
        self._text.end()


class PieceMerger:
    """Passes pieces of text on, and joins small ones late in a long answer."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._passed_on = 0
        self._waiting = ""

    def add(self, text: str) -> None:
        """Passes a piece on, or keeps it until there is enough to pass on."""
        self._waiting += text
        if self._passed_on < MAX_SMALL_PIECES or len(self._waiting) >= MIN_LATE_CHARS:
            self.end()

    def end(self) -> None:
        """Passes on the waiting pieces."""
        if self._waiting:
            text, self._waiting = self._waiting, ""
            self._passed_on += 1
            self._on_text(text)
