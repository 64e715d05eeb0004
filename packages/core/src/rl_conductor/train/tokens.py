"""Prompts and plans as the tokens of one model: made and read as serving the model does. Knows nothing of drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_conductor.models.chat_template import ChatTemplate
from rl_conductor.types import Message, Request


class Tokens:
    """The tokens of one model."""

    def __init__(self, tokenizer: Any, *, name: str) -> None:
        self._tokenizer = tokenizer
        self._chat = ChatTemplate(tokenizer, parts=False)
        self._name = name

    def prompt(self, told: Sequence[Message]) -> list[int]:
        """The prompt, as serving the model makes it."""
        rendered = self._chat.render(Request(messages=tuple(told)), (), model=self._name)
        ids: list[int] = rendered["input_ids"]
        return ids

    def text(self, plan: Sequence[int]) -> str:
        """The plan as serving the model reads it."""
        shown = [token for token in plan if token not in self._chat.silent]
        text: str = self._tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text
