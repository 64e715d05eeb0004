"""Shortens long text, visibly. Pure."""

from __future__ import annotations


def truncate_middle(text: str, max_chars: int) -> str:
    """Keeps the beginning and the end of `text`, and says between them how many characters were left out.

    The result has at most `max_chars` characters plus the length of that note.
    """
    if len(text) <= max_chars:
        return text
    head = max_chars // 2
    tail = max_chars - head
    return f"{text[:head]}\n[... {len(text) - max_chars:,} characters left out ...]\n{text[-tail:]}"
