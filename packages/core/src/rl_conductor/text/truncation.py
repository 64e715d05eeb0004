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
    return _with_note(text[:head], len(text) - max_chars, text[-tail:])


def truncate_middle_bytes(text: str, max_bytes: int) -> str:
    """Shortens like `truncate_middle`, to a size in UTF-8, which is nearer to the tokens; splits no character."""
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    head_bytes = max_bytes // 2
    head = data[:head_bytes].decode(errors="ignore")
    tail = data[head_bytes - max_bytes :].decode(errors="ignore")
    return _with_note(head, len(text) - len(head) - len(tail), tail)


def _with_note(head: str, left_out: int, tail: str) -> str:
    return f"{head}\n[... {left_out:,} characters left out ...]\n{tail}"
