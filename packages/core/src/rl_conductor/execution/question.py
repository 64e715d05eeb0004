"""Converts a question in any accepted form to a request."""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor.errors import ConfigError
from rl_conductor.types import Message, Request, TextPart

Question = str | Sequence[Message] | Request
"""A question as text, a conversation, or a complete request."""


def to_request(question: Question) -> Request:
    """Returns the request of a question.

    Raises:
        ConfigError: the question is empty.
    """
    if isinstance(question, str):
        question = (Message.user(question),)
    request = question if isinstance(question, Request) else Request(messages=tuple(question))
    parts = [part for message in request.messages for part in message.content]
    if all(isinstance(part, TextPart) and not part.text.strip() for part in parts):
        raise ConfigError("the question is empty; write a question")
    return request
