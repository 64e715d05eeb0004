"""Splits replies into reasoning and answer, and learns whether a model's replies begin inside reasoning."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rl_conductor.text.reasoning import (
    ReasoningFilter,
    ReasoningStart,
    SplitReply,
    may_contain_reasoning,
    split_reasoning,
)
from rl_conductor.types import Completion, Delta, ReasoningPart, TextPart

_TEMPLATES_THAT_OPEN = re.compile(
    r"deepseek[-_.]?r1|qwq|qwen-?3\.5|thinking|minimax-m2|nemotron-(?:3-)?nano|step-?3\.[57]", re.IGNORECASE
)
"""Names of models whose chat templates open the reasoning, unless a request turns it off."""


@dataclass
class ReasoningMemory:
    """Remembers whether the last replies of a model began inside or outside of reasoning."""

    start: ReasoningStart = "unknown"

    def expected(self, declared: ReasoningStart, name: str, *, streamed: bool) -> ReasoningStart:
        """Predicts whether the next reply of the model called `name` begins inside reasoning.

        The declared value takes precedence, then earlier replies, then the name. Without them a stream is not delayed.
        """
        if declared != "unknown":
            return declared
        if self.start == "inside" or (self.start == "unknown" and _TEMPLATES_THAT_OPEN.search(name)):
            return "inside"
        return "outside" if streamed else "unknown"

    def observe(self, text: str, split: SplitReply) -> None:
        """Updates the prediction from a reply that ended naturally."""
        if split.closed_unopened or split_reasoning(text).closed_unopened:
            self.start = "inside"
        elif not split.reasoning:
            self.start = "outside"


class ReasoningReader:
    """Separates reasoning from the answer in one reply, streamed or complete."""

    def __init__(self, memory: ReasoningMemory, declared: ReasoningStart, name: str, *, streamed: bool) -> None:
        """`declared` is the model's `Capabilities.reasoning_start`, and `name` its name."""
        self._memory = memory
        self._start = memory.expected(declared, name, streamed=streamed)
        self._filter: ReasoningFilter | None = None

    def add(self, delta: Delta) -> str:
        """Adds a delta and returns the text that certainly belongs to the answer."""
        if delta.reasoning and self._filter is None:
            self._start = "outside"  # the vendor sends it apart
        if not delta.text:
            return ""
        self._filter = self._filter or ReasoningFilter(self._start)
        return self._filter.add(delta.text)

    @property
    def reasoning(self) -> str:
        """The reasoning in the text of a stream; it is complete when the answer begins."""
        return self._filter.reasoning if self._filter else ""

    def rest(self, completion: Completion) -> str:
        """Returns the remaining answer text at the end of a stream."""
        return self._filter.end(truncated=_is_truncated(completion)) if self._filter else ""

    def split(self, completion: Completion, *, learn: bool) -> Completion:
        """Moves the reasoning of a complete reply into its own part; `learn` updates the memory from it."""
        message, is_truncated = completion.message, _is_truncated(completion)
        if not is_truncated and not may_contain_reasoning(message.text):
            if learn and completion.finish_reason == "stop":
                self._memory.start = "outside"
            return completion
        if self._filter is None and any(isinstance(part, ReasoningPart) for part in message.content):
            self._start = "outside"
        split = split_reasoning(message.text, start=self._start, truncated=is_truncated)
        if learn and completion.finish_reason == "stop":
            self._memory.observe(message.text, split)
        if split.answer == message.text:
            return completion
        others = tuple(part for part in message.content if not isinstance(part, TextPart))
        reasoning = (ReasoningPart(text=split.reasoning),) if split.reasoning else ()
        answer = (TextPart(text=split.answer),) if split.answer else ()
        message = message.model_copy(update={"content": (*reasoning, *others, *answer)})
        return completion.model_copy(update={"message": message})


def _is_truncated(completion: Completion) -> bool:
    """Returns whether text without a closing delimiter is truncated reasoning.

    Vendors that count reasoning tokens send reasoning separately or not at all.
    """
    return completion.finish_reason == "length" and not completion.usage.reasoning_tokens
