"""The `<think>` block that some models open their replies with, told from the answer. Pure."""

from __future__ import annotations

from collections.abc import Callable

THINK, _THOUGHT = "<think>", "</think>"


def without_thoughts(text: str) -> str:
    """`text` without the `<think>` block that it starts with; all of it when nothing else is left."""
    opened = text.lstrip().startswith(THINK)
    # Some chat templates write the opening tag themselves; then the closing one stands on a line of its own.
    thoughts, _, answer = text.partition(_THOUGHT if opened else f"\n{_THOUGHT}\n")
    return text if not opened and THINK in thoughts else answer.lstrip() or text


def may_be_thoughts(start: str) -> bool:
    """Whether a reply that starts so may still be in a `<think>` block, or not know yet that it is in none."""
    text = start.lstrip()
    return THINK.startswith(text[: len(THINK)]) and not text.partition(_THOUGHT)[2].strip()


class AnswerOnly:
    """Passes a reply on as it is made, but not the thoughts that it may open with."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` is told each piece of the answer; none is empty."""
        self._say = say
        self._held = ""
        self._is_answer = False

    def add(self, text: str) -> None:
        """The next piece of the reply."""
        self._held += text
        if self._is_answer or not may_be_thoughts(self._held):
            self.end()

    def end(self) -> None:
        """Hold nothing back any more."""
        text = self._held if self._is_answer else without_thoughts(self._held)
        self._held, self._is_answer = "", True
        if text:
            self._say(text)
