"""The input of a model call: messages, tools, reply format and sampling parameters."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from rl_conductor.types.messages import Continuation, FilePart, ImagePart, Message
from rl_conductor.types.value import UserValue, Value

MIN_TIMEOUT = 0.001
"""Seconds: a request's timeout has to be above 0, even when the time is over."""


class Tool(UserValue):
    """A function that the model may request and the caller runs."""

    name: str
    """The name by which the model calls it."""
    description: str = ""
    """The purpose of the tool; the model reads it."""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments."""
    strict: bool | None = None
    """Whether the vendor must enforce the schema exactly, where it can; `None` leaves its default."""


class JsonFormat(Value):
    """Requires a reply in JSON, with an optional schema."""

    type: Literal["json"] = "json"
    name: str = "reply"
    """The schema's name; some vendors show it to the model."""
    json_schema: dict[str, Any] | None = None
    """JSON schema; `None` allows any JSON object."""
    strict: bool | None = None
    """Whether the vendor must enforce the schema exactly; by default where it can, for which OpenAI gets it closed."""

    @property
    def is_strict(self) -> bool:
        """Whether the reply must match the schema exactly."""
        return is_strict_schema(self.json_schema) if self.strict is None else self.strict


def is_strict_schema(schema: Any) -> bool:
    """Returns whether OpenAI accepts a JSON schema as `strict`: not with optional or additional properties."""
    if isinstance(schema, list):
        return all(map(is_strict_schema, schema))
    if not isinstance(schema, dict):
        return True
    fields = schema.get("properties", {})
    try:
        closed = schema.get("additionalProperties") is False and set(schema.get("required", ())) == set(fields)
    except TypeError:  # the schema is malformed
        return False
    return (schema.get("type") != "object" or closed) and all(map(is_strict_schema, schema.values()))


class Grammar(Value):
    """Requires a reply that matches a context-free grammar (constrained decoding)."""

    type: Literal["grammar"] = "grammar"
    gbnf: str
    """GBNF text with the start rule `root` (llama.cpp's form, which XGrammar and vLLM read too)."""


ResponseFormat = Annotated[JsonFormat | Grammar, Field(discriminator="type")]
"""The form that a reply must have."""


Effort = Literal["minimal", "low", "medium", "high"]
"""Reasoning effort."""


class Sampling(UserValue):
    """Sampling parameters. `None` leaves the vendor's default."""

    temperature: float | None = None
    """0 is the most predictable."""
    top_p: float | None = None
    """Samples from the most probable tokens with this share of the probability, 0 to 1."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum output tokens, reasoning included."""
    seed: int | None = None
    """For repeatable replies, where the vendor supports one."""
    stop: tuple[str, ...] = ()
    """Texts at which the reply ends."""
    effort: Effort | None = None
    """How long a reasoning model may think."""


Need = Literal["tools", "images", "files", "json_schema", "grammar"]
"""A feature of a model, as `Capabilities` names it."""


class Request(Value):
    """The input of one model call."""

    messages: tuple[Message, ...]
    """The conversation, oldest first."""
    tools: tuple[Tool, ...] = ()
    """The tools that the model may call."""
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the name of the one tool that must be called."""
    parallel_tool_calls: bool = True
    """Whether a reply may contain several tool calls."""
    response_format: ResponseFormat | None = None
    """`None` means plain text."""
    sampling: Sampling = Field(default_factory=Sampling)
    """Sampling parameters."""
    timeout: float | None = None
    """Seconds until the call is cancelled."""

    @classmethod
    def user(cls, text: str, *, sampling: Sampling | None = None) -> Self:
        """Returns a request with one message, of the user."""
        return cls(messages=(Message.user(text),), sampling=sampling or Sampling())

    def within_seconds(self, seconds: float) -> Self:
        """Returns the request with at most this timeout, or a minimal one if no time is left."""
        timeout = seconds if self.timeout is None else min(self.timeout, seconds)
        return self.model_copy(update={"timeout": max(timeout, MIN_TIMEOUT)})

    @property
    def needs(self) -> tuple[Need, ...]:
        """The features of a model that this request needs."""
        parts = {type(part) for message in self.messages for part in message.content}
        needs: dict[Need, bool] = {
            "tools": bool(self.tools),
            "images": ImagePart in parts,
            "files": FilePart in parts,
            "json_schema": isinstance(self.response_format, JsonFormat),
            "grammar": isinstance(self.response_format, Grammar),
        }
        return tuple(name for name, is_needed in needs.items() if is_needed)

    @property
    def requires_call(self) -> bool:
        """Whether the reply has to call a tool."""
        return bool(self.tools) and self.tool_choice not in ("auto", "none")

    @property
    def last_calls(self) -> int | None:
        """The index of the assistant message with tool calls, if their results end this request, except for notes.

        Notes are messages of the user or the system in the same turn, such as images that a tool returned.
        """
        last = next((i for i in reversed(range(len(self.messages))) if self.messages[i].role == "assistant"), None)
        has_results = any(message.role == "tool" for message in self.messages[(last or 0) + 1 :])
        return last if has_results else None

    @property
    def continuation(self) -> Continuation | None:
        """The continuation of the last assistant message, if this request contains its tool results."""
        return None if self.last_calls is None else self.messages[self.last_calls].continuation
