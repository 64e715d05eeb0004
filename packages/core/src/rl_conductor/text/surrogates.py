"""Joins the halves of surrogate pairs in text from servers that count in UTF-16. Pure."""

from __future__ import annotations


class SurrogateJoiner:
    """Joins halves of surrogate pairs that lie next to each other in a stream of text, also in different pieces."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, text: str, *, is_last: bool) -> str:
        """Adds a piece and returns the text so far; the first half of a pair waits for the second."""
        if not self._half and text.isascii():
            return text
        text, self._half = self._half + text, ""
        if not is_last and "\ud800" <= text[-1:] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return join_surrogates(text)


def join_surrogates(text: str) -> str:
    """Replaces each pair of surrogates by its character; lone ones stay."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text
