"""The data model shared by all packages: messages, requests, replies, usage, prices and worker cards.

Pure data: nothing here calls a model, reads a clock or touches a file. Equal content is equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

MILLION = Decimal(1_000_000)


class Value(BaseModel):
    """Base class of frozen values that are serialised: to HTTP, files or traces."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def _replace_surrogates(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()


Text = Annotated[str, AfterValidator(_replace_surrogates)]
"""Text from outside. Lone surrogates, which JSON may contain but UTF-8 can't encode, become `?`."""

Names = Annotated[frozenset[str], PlainSerializer(sorted, return_type=list[str], when_used="json")]
"""A set of names, serialised in sorted order, so that equal values have equal JSON."""


def _all_digits(amount: Decimal) -> str:
    return f"{amount:f}" if amount else "0"


Dollars = Annotated[Decimal, PlainSerializer(_all_digits, return_type=str, when_used="json")]
"""US dollars, serialised with all digits rather than in exponent notation (`3E-7`)."""


# ---------------------------------------------------------------------------------------- messages


class TextPart(Value):
    """A part of a message that is plain text."""

    type: Literal["text"] = "text"
    text: Text


class ImagePart(Value):
    """An image, by URL or by content."""

    type: Literal["image"] = "image"
    media_type: str = "image/png"
    url: str | None = None
    """An `https:` URL that the vendor fetches; otherwise `data` is set."""
    data: str | None = None
    """Base64 content; otherwise `url` is set."""


class FilePart(Value):
    """A document such as a PDF, by content."""

    type: Literal["file"] = "file"
    media_type: str = "application/pdf"
    name: str = "document.pdf"
    data: str
    """Base64 content."""


class ReasoningPart(Value):
    """Reasoning that a model wrote before its answer; never part of the answer."""

    type: Literal["reasoning"] = "reasoning"
    text: Text
    signature: Text | None = None
    """What a vendor wants back unchanged with the thought (Anthropic's and Google's signatures)."""


ContentPart = Annotated[TextPart | ImagePart | FilePart | ReasoningPart, Field(discriminator="type")]


class ToolCall(Value):
    """A model's request to call one of the caller's tools."""

    id: Text
    name: Text
    arguments: Text
    """The JSON text as the model wrote it: untrusted, and not always valid JSON."""


class Continuation(Value):
    """State to continue with the same worker, without planning again, once tool results arrive.

    It is part of the assistant message with the tool calls, so the server stays stateless.
    """

    worker: str
    prompt: str
    """The last user message as that worker saw it: delimited evidence, then the worker's own subtask."""
    sources: Names | None = None
    """The workers whose replies are in the prompt, directly or indirectly; `None` when not recorded."""


def _as_parts(content: Any) -> Any:
    if isinstance(content, str):
        return (TextPart(text=content),) if content else ()
    return content


class Message(Value):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Annotated[tuple[ContentPart, ...], BeforeValidator(_as_parts)] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """On a `tool` message: the id of the call that this is the result of."""
    name: str | None = None
    continuation: Continuation | None = None

    @classmethod
    def system(cls, text: str) -> Self:
        """Creates a system message."""
        return cls(role="system", content=(TextPart(text=text),))

    @classmethod
    def user(cls, text: str, *parts: ContentPart) -> Self:
        """Creates a user message: text, then images or files."""
        return cls(role="user", content=(TextPart(text=text), *parts))

    @classmethod
    def assistant(cls, text: str = "", *, tool_calls: Iterable[ToolCall] = ()) -> Self:
        """Creates an assistant message with text, tool calls or both."""
        return cls(role="assistant", content=_as_parts(text), tool_calls=tuple(tool_calls))

    @classmethod
    def tool(cls, call_id: str, text: str) -> Self:
        """Creates the message with the result of a tool call."""
        return cls(role="tool", content=_as_parts(text), tool_call_id=call_id)

    @property
    def text(self) -> str:
        """The text parts, joined; images, files and reasoning are left out."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


# ---------------------------------------------------------------------------------------- requests


class Tool(Value):
    """A function that the model may request and the caller runs."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments."""


class JsonFormat(Value):
    """Requires a reply in JSON, with an optional schema."""

    type: Literal["json"] = "json"
    name: str = "reply"
    json_schema: dict[str, Any] | None = None
    """JSON schema; `None` allows any JSON object."""


class Grammar(Value):
    """Requires a reply that matches a context-free grammar (constrained decoding)."""

    type: Literal["grammar"] = "grammar"
    gbnf: str
    """GBNF text with the start rule `root` (llama.cpp's form, which XGrammar and vLLM read too)."""


ResponseFormat = Annotated[JsonFormat | Grammar, Field(discriminator="type")]


Effort = Literal["minimal", "low", "medium", "high"]
"""Reasoning effort."""


class Sampling(Value):
    """Sampling parameters. `None` leaves the vendor's default."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    """Maximum output tokens, reasoning included."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    effort: Effort | None = None


class Request(Value):
    """The input of one model call."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the name of the one tool that must be called."""
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None
    """`None` means plain text."""
    sampling: Sampling = Field(default_factory=Sampling)
    timeout: float | None = None
    """Seconds until the call is cancelled."""

    @property
    def continuation(self) -> Continuation | None:
        """The continuation of the last assistant message, if this request contains its tool results."""
        before = [message for message in self.messages if message.role != "tool"]
        brings_results = bool(self.messages) and self.messages[-1].role == "tool"
        return before[-1].continuation if brings_results and before and before[-1].role == "assistant" else None


# ----------------------------------------------------------------------------------- usage and cost


class Usage(Value):
    """Tokens, calls and cost; add two with `+`."""

    input_tokens: int = Field(default=0, ge=0)
    """All input tokens, cached ones included."""
    cached_tokens: int = Field(default=0, ge=0)
    """The part of `input_tokens` that was read from the vendor's cache."""
    cache_write_tokens: int = Field(default=0, ge=0)
    """The part of `input_tokens` that was written to the vendor's cache."""
    output_tokens: int = Field(default=0, ge=0)
    """All output tokens, reasoning included."""
    reasoning_tokens: int = Field(default=0, ge=0)
    """The part of `output_tokens` spent on reasoning."""
    calls: int = Field(default=0, ge=0)
    cost: Dollars = Field(default=Decimal(0), ge=0)
    """US dollars, for the calls whose price is known."""
    unpriced_calls: int = Field(default=0, ge=0)
    """Calls whose price is unknown: when this is not 0, `cost` is a lower bound."""
    cached_calls: int = Field(default=0, ge=0)
    """Calls answered from a reply cache: counted with their original usage, but not made or paid again."""
    cached_seconds: float = Field(default=0.0, ge=0)
    """The original duration of cached calls, minus the time that their replies took now."""

    @property
    def total_tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return total((self, other))


def total(usages: Iterable[Usage]) -> Usage:
    """Sums `usages`; zero when there are none."""
    items = tuple(usages)
    return Usage(
        input_tokens=sum(usage.input_tokens for usage in items),
        cached_tokens=sum(usage.cached_tokens for usage in items),
        cache_write_tokens=sum(usage.cache_write_tokens for usage in items),
        output_tokens=sum(usage.output_tokens for usage in items),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in items),
        calls=sum(usage.calls for usage in items),
        cost=sum((usage.cost for usage in items), Decimal(0)),
        unpriced_calls=sum(usage.unpriced_calls for usage in items),
        cached_calls=sum(usage.cached_calls for usage in items),
        cached_seconds=sum(usage.cached_seconds for usage in items),
    )


class PriceTier(Value):
    """Rates for the whole call when its input is longer than `above` tokens."""

    above: int
    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    cache_write: Decimal | None = None


class Price(Value):
    """US dollars per million tokens."""

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    """Rate of cached input; `None` means the full input rate."""
    cache_write: Decimal | None = None
    """Rate of input that is written to the cache; `None` means the full input rate."""
    per_call: Decimal = Decimal(0)
    """US dollars added for each call."""
    tiers: tuple[PriceTier, ...] = ()
    """Higher rates for long inputs, in ascending order of `above`."""

    def cost(
        self, *, input_tokens: int, output_tokens: int, cached_tokens: int = 0, cache_write_tokens: int = 0
    ) -> Decimal:
        """Computes the US dollars of one call; `input_tokens` includes `cached_tokens` and `cache_write_tokens`."""
        rates = self._rates(input_tokens)
        cached_rate = rates.input if rates.cached_input is None else rates.cached_input
        write_rate = rates.input if rates.cache_write is None else rates.cache_write
        # Vendors may report more cached than input tokens, which must not lower the cost.
        fresh = max(input_tokens - cached_tokens - cache_write_tokens, 0)
        read = fresh * rates.input + cached_tokens * cached_rate + cache_write_tokens * write_rate
        return self.per_call + (read + output_tokens * rates.output) / MILLION

    def max_cost(self, *, input_tokens: int, output_tokens: int) -> Decimal:
        """Computes the maximum US dollars of one call: no input is cached or all is written, whichever costs more."""
        rates = self._rates(input_tokens)
        rate = rates.input if rates.cache_write is None else max(rates.input, rates.cache_write)
        return self.per_call + (input_tokens * rate + output_tokens * rates.output) / MILLION

    def _rates(self, input_tokens: int) -> Price | PriceTier:
        rates: Price | PriceTier = self
        for tier in self.tiers:
            if input_tokens > tier.above:
                rates = tier
        return rates


FREE = Price.model_construct(input=Decimal(0), output=Decimal(0))
"""The price of models that run locally."""


# ----------------------------------------------------------------------------------------- replies

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class Completion(Value):
    """A complete reply of a model."""

    message: Message
    usage: Usage
    finish_reason: FinishReason = "stop"
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


# ----------------------------------------------------------------------------------------- workers


Roster = Literal["ordinals", "anonymous", "cards"]
"""How the planner's prompt lists the workers: `cards` with all fields of their cards; `anonymous` without names, and
with descriptions only for workers without strengths; `ordinals` as bare numbers in a fixed order (paper). A trained
planner needs the roster that it was trained with."""


class Card(Value):
    """Describes a worker, for planning prompts and for policy selectors."""

    name: str
    description: str = ""
    """Description of the worker, set by the user or by the worker itself."""
    strengths: str = ""
    """The worker's strengths, in one line."""
    accuracy: dict[str, float] = Field(default_factory=dict)
    """Measured accuracy by domain, 0 to 1."""
    price: Price | None = None
    latency: float | None = None
    """Median duration of a call in seconds."""
    tags: Names = frozenset()
    region: str | None = None

    @property
    def mean_accuracy(self) -> float:
        """Mean accuracy over the measured domains; 0 when there are none."""
        return sum(self.accuracy.values()) / len(self.accuracy) if self.accuracy else 0.0
