"""Converts a question in any accepted form to a request."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from rl_conductor.errors import ConfigError
from rl_conductor.text.delimiters import conversation_key, new_delimiter_key
from rl_conductor.types import Message, Request, TextPart

Question = str | Sequence[Message] | Request
"""A question as text, a conversation, or a complete request."""


def delimiter_key(request: Request) -> str:
    """Returns the key of the delimiters in prompts, which is the same in every turn of a conversation.

    It is derived from the messages up to the user's first one. A conversation without any gets a random key.
    """
    roles = [message.role for message in request.messages]
    if "user" not in roles:
        return new_delimiter_key()
    opening = request.messages[: roles.index("user") + 1]
    return conversation_key([text for message in opening for text in (message.role, message.text)])


def to_request(question: Question) -> Request:
    """Returns the request of a question.

    Raises:
        ConfigError: the question is empty, or of another type.
    """
    if isinstance(question, str):
        question = Request.unchecked(messages=(Message.user(question),))
    try:
        request = question if isinstance(question, Request) else Request(messages=tuple(question))
    except (TypeError, ValidationError) as error:
        kind = type(question).__name__
        message = f"a value of type {kind} is not a question; write text, a list of Message, or a Request"
        raise ConfigError(message) from error
    parts = [part for message in request.messages for part in message.content]
    if all(isinstance(part, TextPart) and not part.text.strip() for part in parts):
        raise ConfigError("the question is empty; write a question")
    return request
