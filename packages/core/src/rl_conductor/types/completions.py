"""The output of a model call, complete or in chunks."""

from __future__ import annotations

from operator import not_
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rl_conductor.types.messages import Message
from rl_conductor.types.usage import Usage
from rl_conductor.types.value import Text, Value

MAX_MODEL_NAME_CHARS = 256
"""Maximum length of the name of a model that a server reports, because errors and traces repeat it."""

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
"""Why a reply ended."""

LENGTH_REASONS = (
    *("length", "max_tokens", "max_output_tokens", "model_length", "continuation"),
    *("model_context_window_exceeded", "pause_turn"),  # Anthropic's
)
FILTER_REASONS = (
    *("content_filter", "content_filtered", "refusal", "guardrail_intervened"),
    # Google's
    *("safety", "recitation", "language", "blocklist", "prohibited_content", "spii", "escalation", "model_armor"),
    *("image_safety", "image_prohibited_content", "image_recitation"),
)


def parse_finish_reason(reason: object, *, tool_calls: bool) -> FinishReason:
    """Maps a vendor's reason for the end of a reply; any other counts as a natural end."""
    name = str(reason).lower()
    if name in LENGTH_REASONS:
        return "length"
    if name in FILTER_REASONS:
        return "content_filter"
    return "tool_calls" if tool_calls else "stop"


class Completion(Value):
    """A complete reply of a model."""

    message: Message
    """The reply."""
    usage: Usage = Field(default_factory=Usage)
    """Tokens, calls and cost. A usage without calls, the default, is completed from the model's price."""
    finish_reason: FinishReason = "stop"
    """Why the reply ended."""
    is_refusal: bool = Field(default=False, exclude_if=not_)
    """Whether the text says why the model refuses to answer (OpenAI). It is then not in the required format, and no
    piece of it is streamed before the completion."""
    stop_sequence: Text | None = Field(default=None, exclude_if=lambda text: text is None)
    """The stop sequence at which the model stopped, if the vendor reports it."""
    dropped_calls: int = Field(default=0, exclude_if=not_)
    """Number of tool calls that were removed from the message: all without tools, all but the first if the request
    allows no parallel calls, and those of a worker's own tools that it could not call."""
    model: Annotated[Text, AfterValidator(lambda name: name[:MAX_MODEL_NAME_CHARS])]
    """The model that really answered, as the vendor names it; of a longer name, the first 256 characters."""

    @property
    def text(self) -> str:
        """The text of the reply, without reasoning."""
        return self.message.text


class Delta(Value):
    """A chunk of a streamed reply, or an empty sign that the model has begun a reply, which may be billed from then on.

    The last one contains the complete `completion`.
    """

    text: Text = ""
    """The next piece of the reply."""
    reasoning: Text = ""
    """The next piece of its reasoning."""
    completion: Completion | None = None
    """The whole reply, in the last chunk."""
