"""`PromptTemplate`: the fixed part of a worker's prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl_conductor.types import Message


@dataclass(frozen=True)
class PromptTemplate:
    """A fixed system prompt with examples, the same for every request, so that engines can cache its prefix."""

    rules: str
    examples: tuple[tuple[str, str], ...] = ()
    """Pairs of a request and its reply."""

    def to_messages(self, conversation: Sequence[Message]) -> tuple[Message, ...]:
        """Puts the template before `conversation` and appends the conversation's system messages to the rules."""
        rules = (self.rules, *(message.text for message in conversation if message.role == "system"))
        demonstrations = (
            turn for question, reply in self.examples for turn in (Message.user(question), Message.assistant(reply))
        )
        turns = (message for message in conversation if message.role != "system")
        return (Message.system("\n\n".join(rules)), *demonstrations, *turns)
