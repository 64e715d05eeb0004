"""A greeting, answered whole or in chunks: for standard tests of what both ways tell of their tokens."""

from __future__ import annotations

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk


def greeted(chat: BaseChatModel, *, stream: bool) -> AIMessage:
    """The answer, put together from its chunks where it is streamed."""
    if not stream:
        return chat.invoke("Hello")
    first, *others = chat.stream("Hello")
    whole = first + others
    assert isinstance(whole, AIMessageChunk)
    return whole
