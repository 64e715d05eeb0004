"""`Model`, the one interface of the Conductor's own brain, of every worker and of the Conductor itself.

An adapter translates requests, replies and errors of one vendor's library; it does not retry (the
executor does, and the two would multiply), it does not log, and it imports its library when it is built.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from rl_conductor.errors import (
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    RateLimitError,
)
from rl_conductor.text.reasoning import ReasoningStart
from rl_conductor.types import (
    Completion,
    Delta,
    FilePart,
    Grammar,
    ImagePart,
    JsonFormat,
    Price,
    ReasoningPart,
    Request,
    ToolCall,
    Usage,
    Value,
)

T = TypeVar("T")

DEFAULT_TIMEOUT = 600.0
"""Seconds that a request without a timeout of its own may be silent, for services that are told a number."""

LONGEST_ERROR = 1000
"""Characters of a vendor's message that are worth quoting."""

MALFORMED = (ValueError, TypeError, LookupError, AttributeError)
"""What vendors' libraries trip over when a reply is not what the protocol promises, for they do not check it."""

MAX_TOKENS_PER_CALL = 10**9
"""Most tokens that one call can report: a vendor's counts are untrusted, and larger ones fit no database."""

TOKEN_COUNTS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
"""The fields of `Usage` that vendors report."""

ERRORS_BY_STATUS: dict[int, type[ModelError]] = {
    401: AuthenticationError,
    402: AuthenticationError,
    403: AuthenticationError,
    408: ModelTimeoutError,
    413: ContextLengthError,
    429: RateLimitError,
    504: ModelTimeoutError,
}
"""What an HTTP status means; any other 4xx is a `BadRequestError`, any other 5xx a retryable `ModelError`."""


class Capabilities(Value):
    """What a model can take and do; asking for more raises `BadRequestError` before the call."""

    tools: bool = False
    images: bool = False
    files: bool = False
    json_schema: bool = False
    array_bounds: bool = False
    """A JSON schema may bound how many items an array has (`minItems`, `maxItems`)."""
    grammar: bool = False
    """Decoding can be held to a `Grammar`."""
    lengths: Literal["grammar", "check"] = "grammar"
    """What bounds lengths in a plan: its grammar, or the check afterwards where the engine counts slowly (XGrammar)."""
    delegates: bool = False
    """Makes its calls through an executor that reserves and settles each one itself (a Conductor)."""
    reasoning_start: ReasoningStart = "unknown"
    """Where its replies begin: `inside` reasoning that its chat template has opened, or `outside` of it."""
    context: int | None = None
    """Most tokens that it reads and writes in one call, where that is known without asking it."""

    @property
    def names(self) -> frozenset[str]:
        """The names of what it can do."""
        return frozenset(name for name, able in self if able is True)


@runtime_checkable
class Model(Protocol):
    """Anything that answers a `Request`."""

    @property
    def name(self) -> str:
        """`provider:model`, as in `model("openai:gpt-5")`."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can take and do."""

    @property
    def price(self) -> Price | None:
        """Its price; `None` when unknown."""

    async def complete(self, request: Request) -> Completion:
        """The whole reply. Raises `ModelError`; never returns an empty success."""

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply as it is made; the last delta carries the `Completion`, whose text is that of all deltas.

        Closing the generator before its end stops the call.
        """

    async def aclose(self) -> None:
        """Close connections and free memory; the model may be used again afterwards."""


class WrapperModel:
    """A model around another. What it is and can do is the other's, whenever asked: loading may settle that."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def name(self) -> str:
        """The model's."""
        return self.model.name

    @property
    def capabilities(self) -> Capabilities:
        """The model's."""
        return self.model.capabilities

    @property
    def price(self) -> Price | None:
        """The model's."""
        return self.model.price

    async def aclose(self) -> None:
        """Close the model."""
        await self.model.aclose()


def require(model: Model, request: Request) -> None:
    """Raise `BadRequestError` when `request` asks for what `model` can't do."""
    can = model.capabilities
    parts = [part for message in request.messages for part in message.content]
    missing = [
        what
        for what, asked, able in (
            ("tools", bool(request.tools), can.tools),
            ("images", any(isinstance(part, ImagePart) for part in parts), can.images),
            ("files", any(isinstance(part, FilePart) for part in parts), can.files),
            ("a JSON schema", isinstance(request.response_format, JsonFormat), can.json_schema),
            ("a grammar", isinstance(request.response_format, Grammar), can.grammar),
        )
        if asked and not able
    ]
    if missing:
        raise BadRequestError(f"model {model.name!r} can't take {' or '.join(missing)}", model=model.name)


def priced(usage: Usage, price: Price | None) -> Usage:
    """`usage` of one call with its cost filled in; marked as unpriced where the price, or the tokens, are not known.

    Counts above `MAX_TOKENS_PER_CALL` are lowered to it.
    """
    if any(getattr(usage, name) > MAX_TOKENS_PER_CALL for name in TOKEN_COUNTS):
        usage = usage.model_copy(update={name: min(getattr(usage, name), MAX_TOKENS_PER_CALL) for name in TOKEN_COUNTS})
    counted = usage.input_tokens or usage.output_tokens
    if price is None or (not counted and (price.input or price.output)):
        return usage.model_copy(update={"calls": 1, "unpriced_calls": 1})
    cost = price.cost(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    return usage.model_copy(update={"calls": 1, "cost": cost})


def checked(completion: Completion) -> Completion:
    """`completion` itself, or `BadResponseError` when it holds neither text nor a tool call."""
    if completion.text.strip() or completion.message.tool_calls:
        return completion
    only_reasoning = any(isinstance(part, ReasoningPart) for part in completion.message.content)
    why = {
        "length": "it ran out of output tokens before it wrote any answer; raise max_tokens",
        "content_filter": "the vendor's content filter withheld the answer",
    }.get(
        completion.finish_reason,
        "it ended after its reasoning, without an answer" if only_reasoning else "the reply is empty",
    )
    raise BadResponseError(
        f"{completion.model}: {why}",
        model=completion.model,
        retryable=completion.finish_reason not in ("length", "content_filter"),
    )


async def collect(deltas: AsyncIterator[Delta]) -> Completion:
    """The completion at the end of a stream; `BadResponseError` when it broke off before."""
    async for delta in deltas:
        if delta.completion is not None:
            return delta.completion
    raise BadResponseError("the stream ended before the reply was complete", model="unknown")


def broke_off(problem: BaseException | None) -> bool:
    """Whether a connection ended before the reply did; told by name, for some libraries speak httpx, some httpx2."""
    return type(problem).__name__ in ("ReadError", "RemoteProtocolError", "DecodingError")


def status_error(message: str, *, model: str, status: int, retry_after: float | None = None) -> ModelError:
    """The error that an HTTP `status` means."""
    if 300 <= status < 400:
        why = "redirects are not followed, for key and question would go along; write the final address as base_url"
        return BadRequestError(f"{model}: HTTP status {status}: {why}", model=model, status=status)
    if status in ERRORS_BY_STATUS:
        return ERRORS_BY_STATUS[status](message, model=model, status=status, retry_after=retry_after)
    if status < 500:
        return BadRequestError(message, model=model, status=status)
    return ModelError(message, model=model, status=status, retryable=True, retry_after=retry_after)


async def within(limit: float | None, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """`items`, closed at the end; `TimeoutError` once they took `limit` seconds, the reader's own time included."""
    deadline = None if limit is None else asyncio.get_running_loop().time() + limit
    async with aclosing(items):
        while True:
            # A timeout around the whole loop would cancel the reader instead, wherever it is between two items.
            async with asyncio.timeout_at(deadline):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """The arguments as an object, for vendors that take no text; what is none stands under `invalid_json`."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"invalid_json": call.arguments}
