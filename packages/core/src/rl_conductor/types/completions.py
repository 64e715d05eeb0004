"""The output of a model call, complete or in chunks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_conductor.types.messages import Message
from rl_conductor.types.usage import Usage
from rl_conductor.types.value import Text, Value

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class Completion(Value):
    """A complete reply of a model."""

    message: Message
    usage: Usage = Field(default_factory=Usage)
    """Tokens, calls and cost. A usage without calls, the default, is completed from the model's price."""
    finish_reason: FinishReason = "stop"
    stop_sequence: Text | None = Field(default=None, exclude_if=lambda text: text is None)
    """The stop sequence at which the model stopped, if the vendor reports it."""
    model: Text
    """The model that really answered, as the vendor names it."""

    @property
    def text(self) -> str:
        """The text of the reply, without reasoning."""
        return self.message.text


class Delta(Value):
    """A chunk of a streamed reply. The last one contains the complete `completion`."""

    text: Text = ""
    reasoning: Text = ""
    completion: Completion | None = None
