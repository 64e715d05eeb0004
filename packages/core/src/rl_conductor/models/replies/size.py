"""Limits the characters that are collected of one reply, so that a model that never ends can't exhaust the memory.

The limit is `limits.reply_chars`. `http.reply_limit` limits the bytes of a vendor's stream, most of which are not text.
"""

from __future__ import annotations

from contextvars import ContextVar

from rl_conductor.errors import BadResponseError
from rl_conductor.workflow.limits import DEFAULT_REPLY_CHARS

CHARS_PER_PART = 4_096
"""Minimum size of a content block or a tool call in the count, because empty ones take memory as well."""

max_reply_chars: ContextVar[int] = ContextVar("max_reply_chars", default=DEFAULT_REPLY_CHARS)
"""The limit of the calls that this task makes."""


class ReplySize:
    """Counts the characters of one reply: its text, its reasoning, and the arguments of its tool calls."""

    def __init__(self, model: str) -> None:
        """Takes the limit that applies now; `model` is the name to use in the error."""
        self._model = model
        self._limit = max_reply_chars.get()
        self._chars = 0

    def add(self, *texts: str | None, parts: int = 0) -> None:
        """Counts texts and the beginning of `parts`. Raises `BadResponseError` above the limit."""
        self._chars += CHARS_PER_PART * parts
        for text in texts:
            if text:
                self._chars += len(text)
        if self._chars > self._limit:
            reason = f"limits.reply_chars={self._limit} is used up before the reply ended"
            message = f"{self._model}: {reason}; raise it to allow longer replies"
            raise BadResponseError(message, model=self._model, retryable=False)
