"""Encodes prompts and decodes plans for one model, exactly as serving that model does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_conductor.models.in_process.chat_template import ChatTemplate
from rl_conductor.types import Message, Request


class PlanTokenizer:
    """A tokenizer with the chat template of its model."""

    def __init__(self, tokenizer: Any, *, name: str) -> None:
        self._tokenizer = tokenizer
        self._chat = ChatTemplate(tokenizer, parts=False)
        self._name = name

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Encodes messages by the chat template."""
        rendered = self._chat.render(Request(messages=tuple(messages)), (), model=self._name)
        ids: list[int] = rendered["input_ids"]
        return ids

    def decode_plan(self, tokens: Sequence[int]) -> str:
        """Decodes a plan, without the tokens that serving leaves out."""
        visible = [token for token in tokens if token not in self._chat.silent]
        text: str = self._tokenizer.decode(visible, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text
