"""Asks for a greeting, whole or in chunks, for standard tests of usage metadata."""

from __future__ import annotations

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk


def greeted(chat: BaseChatModel, *, stream: bool) -> AIMessage:
    """The answer, put together from its chunks where it is streamed."""
    if not stream:
        return chat.invoke("Hello")
    first, *others = chat.stream("Hello")
    message = first + others
    assert isinstance(message, AIMessageChunk)
    return message
