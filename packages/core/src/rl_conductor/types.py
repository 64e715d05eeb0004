"""The values that every part of the package speaks in: messages, requests, replies, usage and prices.

Pure data: nothing here calls a model, reads a clock or touches a file. Equal content is equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

MILLION = Decimal(1_000_000)


class Value(BaseModel):
    """A frozen value that crosses a process: wire, file or trace."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()


Text = Annotated[str, AfterValidator(_encodable)]
"""Text from outside. Half a surrogate pair, which a vendor's JSON may hold but no file or wire of ours, becomes `?`."""

Names = Annotated[frozenset[str], PlainSerializer(sorted, return_type=list[str], when_used="json")]
"""A set of names. It is written in order, so that equal values are equal text in every process."""


def _in_full(amount: Decimal) -> str:
    return f"{amount:f}" if amount else "0"


Dollars = Annotated[Decimal, PlainSerializer(_in_full, return_type=str, when_used="json")]
"""US dollars. JSON has every digit, as programs that sum up need not know the notation `3E-7`, which `str` gives."""


# ---------------------------------------------------------------------------------------- messages


class TextPart(Value):
    """A piece of plain text."""

    type: Literal["text"] = "text"
    text: Text


class ImagePart(Value):
    """An image, by address or by content."""

    type: Literal["image"] = "image"
    media_type: str = "image/png"
    url: str | None = None
    """An `https:` address the vendor fetches itself; else `data` is set."""
    data: str | None = None
    """Base64 content; else `url` is set."""


class FilePart(Value):
    """A document such as a PDF, by content."""

    type: Literal["file"] = "file"
    media_type: str = "application/pdf"
    name: str = "document.pdf"
    data: str
    """Base64 content."""


class ReasoningPart(Value):
    """What a model thought before it answered; never part of the answer itself."""

    type: Literal["reasoning"] = "reasoning"
    text: Text
    signature: Text | None = None
    """What a vendor wants back unchanged with the thought (Anthropic's and Google's signatures)."""


ContentPart = Annotated[TextPart | ImagePart | FilePart | ReasoningPart, Field(discriminator="type")]


class ToolCall(Value):
    """A model's wish to call one of the caller's tools."""

    id: Text
    name: Text
    arguments: Text
    """The JSON text as the model wrote it: untrusted, and not always valid JSON."""


class Continuation(Value):
    """What the turn that brings tool results needs to go on with the same worker, without planning again.

    It travels inside the assistant message that carries the tool calls, so no server has to remember it.
    """

    worker: str
    prompt: str
    """The last user message as that worker saw it: evidence in its fence, then the worker's own subtask."""
    sources: Names | None = None
    """The workers whose replies are in the prompt, directly or through others; `None` when that was not recorded."""


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
    """On a `tool` message: which call this is the result of."""
    name: str | None = None
    continuation: Continuation | None = None

    @classmethod
    def system(cls, text: str) -> Self:
        """A system message of plain text."""
        return cls(role="system", content=(TextPart(text=text),))

    @classmethod
    def user(cls, text: str, *parts: ContentPart) -> Self:
        """A user message: text, then images or files."""
        return cls(role="user", content=(TextPart(text=text), *parts))

    @classmethod
    def assistant(cls, text: str = "", *, tool_calls: Iterable[ToolCall] = ()) -> Self:
        """An assistant message of plain text, tool calls or both."""
        return cls(role="assistant", content=_as_parts(text), tool_calls=tuple(tool_calls))

    @classmethod
    def tool(cls, call_id: str, text: str) -> Self:
        """The result of a tool call."""
        return cls(role="tool", content=_as_parts(text), tool_call_id=call_id)

    @property
    def text(self) -> str:
        """The text parts, joined; images, files and reasoning are left out."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


# ---------------------------------------------------------------------------------------- requests


class Tool(Value):
    """A function the caller offers; the model may ask for it, the caller runs it."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments."""


class JsonFormat(Value):
    """The reply must be JSON of a given schema."""

    type: Literal["json"] = "json"
    name: str = "reply"
    json_schema: dict[str, Any] | None = None
    """JSON schema; `None` asks for any JSON object."""


class Grammar(Value):
    """The reply must be in the language of a context-free grammar."""

    type: Literal["grammar"] = "grammar"
    gbnf: str
    """GBNF text with the start rule `root` (llama.cpp's form, which XGrammar and vLLM read too)."""


ResponseFormat = Annotated[JsonFormat | Grammar, Field(discriminator="type")]


Effort = Literal["minimal", "low", "medium", "high"]
"""How long a reasoning model may think."""


class Sampling(Value):
    """How tokens are drawn. `None` leaves the vendor's default."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    """Most output tokens, reasoning included."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    effort: Effort | None = None


class Request(Value):
    """Everything one call to a model needs."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the name of the one tool that must be called."""
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None
    """`None` is plain text."""
    sampling: Sampling = Field(default_factory=Sampling)
    timeout: float | None = None
    """Seconds until the call is given up."""

    @property
    def continuation(self) -> Continuation | None:
        """What the last assistant turn left for the turn that brings its tool results, if this is that turn."""
        before = [message for message in self.messages if message.role != "tool"]
        brings_results = bool(self.messages) and self.messages[-1].role == "tool"
        return before[-1].continuation if brings_results and before and before[-1].role == "assistant" else None


# ----------------------------------------------------------------------------------- usage and cost


class Usage(Value):
    """What calls consumed. Add two with `+`."""

    input_tokens: int = Field(default=0, ge=0)
    """All tokens read, cached ones included."""
    cached_tokens: int = Field(default=0, ge=0)
    """The share of `input_tokens` that the vendor had cached."""
    cache_write_tokens: int = Field(default=0, ge=0)
    """The share of `input_tokens` that the vendor has cached now, for later calls."""
    output_tokens: int = Field(default=0, ge=0)
    """All tokens written, reasoning included."""
    reasoning_tokens: int = Field(default=0, ge=0)
    """The share of `output_tokens` spent on reasoning."""
    calls: int = Field(default=0, ge=0)
    cost: Dollars = Field(default=Decimal(0), ge=0)
    """US dollars, for the calls whose price is known."""
    unpriced_calls: int = Field(default=0, ge=0)
    """Calls whose price is unknown: when this is not 0, `cost` is a lower bound."""
    cached_calls: int = Field(default=0, ge=0)
    """Calls answered from a cache of replies: counted as when they were first made, but not made or paid again."""
    cached_seconds: float = Field(default=0.0, ge=0)
    """How long those took when they were first made, less what was waited for them now."""

    @property
    def total_tokens(self) -> int:
        """Tokens read and written."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return total((self, other))


def total(usages: Iterable[Usage]) -> Usage:
    """The sum of `usages`; of none, zero."""
    each = tuple(usages)
    return Usage(
        input_tokens=sum(one.input_tokens for one in each),
        cached_tokens=sum(one.cached_tokens for one in each),
        cache_write_tokens=sum(one.cache_write_tokens for one in each),
        output_tokens=sum(one.output_tokens for one in each),
        reasoning_tokens=sum(one.reasoning_tokens for one in each),
        calls=sum(one.calls for one in each),
        cost=sum((one.cost for one in each), Decimal(0)),
        unpriced_calls=sum(one.unpriced_calls for one in each),
        cached_calls=sum(one.cached_calls for one in each),
        cached_seconds=sum(one.cached_seconds for one in each),
    )


class PriceTier(Value):
    """Rates that apply to a whole call once its input is longer than `above` tokens."""

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
    """Rate of input that is cached for later; `None` means the full input rate."""
    per_call: Decimal = Decimal(0)
    """US dollars for each call, on top."""
    tiers: tuple[PriceTier, ...] = ()
    """Dearer rates for long inputs, in rising order of `above`."""

    def cost(
        self, *, input_tokens: int, output_tokens: int, cached_tokens: int = 0, cache_write_tokens: int = 0
    ) -> Decimal:
        """US dollars for one call; cached tokens and those that were cached now are among those of the input."""
        rates = self._rates(input_tokens)
        cached_rate = rates.input if rates.cached_input is None else rates.cached_input
        write_rate = rates.input if rates.cache_write is None else rates.cache_write
        # A vendor's numbers need not add up, and must not earn money.
        fresh = max(input_tokens - cached_tokens - cache_write_tokens, 0)
        read = fresh * rates.input + cached_tokens * cached_rate + cache_write_tokens * write_rate
        return self.per_call + (read + output_tokens * rates.output) / MILLION

    def most(self, *, input_tokens: int, output_tokens: int) -> Decimal:
        """US dollars for a call that caches nothing of what it reads, or all of it, whichever is dearer."""
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
"""The price of a model that runs on the user's own machine."""


# ----------------------------------------------------------------------------------------- replies

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class Completion(Value):
    """A model's whole reply."""

    message: Message
    usage: Usage
    finish_reason: FinishReason = "stop"
    model: Text
    """The model that really answered, as the vendor names it."""

    @property
    def text(self) -> str:
        """The reply's text."""
        return self.message.text


class Delta(Value):
    """A piece of a streamed reply. The last one carries the whole `completion`."""

    text: Text = ""
    reasoning: Text = ""
    completion: Completion | None = None


# ----------------------------------------------------------------------------------------- workers


Roster = Literal["ordinals", "anonymous", "cards"]
"""How the pool is described: `cards` with all that is known of each worker, its name first; `anonymous` without names,
and with descriptions only where a worker has no strengths; `ordinals` as bare numbers in a fixed order (paper). A
trained planner needs the form that it was trained with."""


class Card(Value):
    """What is known of a worker: what the Conductor may be told, and what rules may refer to."""

    name: str
    description: str = ""
    """What it is and does: given by the user, or the worker's own."""
    strengths: str = ""
    """What it is good at, in one line."""
    accuracy: dict[str, float] = Field(default_factory=dict)
    """Measured share of right answers by domain, 0 to 1."""
    price: Price | None = None
    latency: float | None = None
    """Median seconds of a call."""
    tags: Names = frozenset()
    region: str | None = None

    @property
    def mean_accuracy(self) -> float:
        """Mean over the measured domains; 0 when nothing was measured."""
        return sum(self.accuracy.values()) / len(self.accuracy) if self.accuracy else 0.0
