"""`Model`, the interface that planners, workers and the Conductor itself implement.

An adapter translates requests, replies and errors of one vendor's library. It does not retry, because the executor
does, and it does not log. Its module imports the vendor's library.
"""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Literal, Protocol, Self, TypeVar, runtime_checkable

from rl_conductor._internal.formatting import parse_seconds
from rl_conductor.errors import (
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    OutputLimitError,
    OverloadedError,
    RateLimitError,
)
from rl_conductor.text.reasoning import ReasoningStart
from rl_conductor.types import (
    Completion,
    Delta,
    Price,
    ReasoningPart,
    Request,
    ToolCall,
    Usage,
    Value,
)

T = TypeVar("T")

DEFAULT_TIMEOUT = 600.0
"""Timeout in seconds for requests without one, for APIs that require a number."""

MAX_ERROR_LENGTH = 1000
"""Maximum number of characters quoted from a vendor's error message."""

MALFORMED_REPLY_ERRORS = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors that vendors' libraries raise for a malformed reply, because they do not validate it."""

MAX_TOKENS_PER_CALL = 10**9
"""Maximum tokens that one call can report: vendors' counts are untrusted and must fit into a database."""

TOKEN_COUNTS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
"""The fields of `Usage` that vendors report."""
_token_counts = attrgetter(*TOKEN_COUNTS)

ERRORS_BY_STATUS: dict[int, type[ModelError]] = {
    401: AuthenticationError,
    402: AuthenticationError,
    403: AuthenticationError,
    408: ModelTimeoutError,
    413: ContextLengthError,
    429: RateLimitError,
    504: ModelTimeoutError,
    529: OverloadedError,
}
"""Error class by HTTP status; any other 4xx is a `BadRequestError`, any other 5xx a retryable `ModelError`."""


class Capabilities(Value):
    """Features that a model supports; a request for any other raises `BadRequestError` before the call."""

    tools: bool = False
    images: bool = False
    files: bool = False
    json_schema: bool = False
    array_bounds: bool = False
    """JSON schemas may use `minItems` and `maxItems`."""
    grammar: bool = False
    """Decoding can be constrained by a `Grammar`."""
    lengths: Literal["grammar", "check"] = "grammar"
    """How length limits in plans are enforced: by the grammar, or by validation if grammars are slow (XGrammar)."""
    delegates: bool = False
    """The model makes calls of its own and accounts for each of them itself (a Conductor)."""
    reasoning_start: ReasoningStart = "unknown"
    """Whether replies begin `inside` reasoning, which the chat template has opened, or `outside` of it."""
    context: int | None = None
    """Maximum tokens of prompt and reply together, if known without a call."""
    thinking_tokens: int = 0
    """The model's own budget for thinking, which the maximum of tokens of a reply has to exceed; 0 without one."""
    runs_in: Literal["server", "process"] = "server"
    """Where the model runs: in this process, it is small, and its calls share the processor or GPU with all others."""
    plans: bool = True
    """The model can be a planner. A function, an agent or a chain can't: it would do the task that it should plan."""

    @property
    def names(self) -> frozenset[str]:
        """The names of the supported features, as traces store them: without `plans`, which most models have."""
        return frozenset(name for name, value in self if value is True and name != "plans")

    @classmethod
    def of_names(cls, names: Iterable[str], **settings: object) -> Self:
        """Returns the capabilities with these `names`, as traces store them, and with other fields in `settings`."""
        return cls.model_validate({**dict.fromkeys(names, True), **settings})


@runtime_checkable
class Model(Protocol):
    """Anything that answers a `Request`. A subclass defines `name` and `complete`; the rest has defaults."""

    @property
    @abstractmethod
    def name(self) -> str:
        """`provider:model`, as in `model("openai:gpt-5")`."""

    @property
    def capabilities(self) -> Capabilities:
        """The features that the model supports; only text by default."""
        return Capabilities()

    @property
    def price(self) -> Price | None:
        """The price of a call; `None`, the default, if unknown."""
        return None

    @abstractmethod
    async def complete(self, request: Request) -> Completion:
        """Returns the complete reply. Raises `ModelError`, also for an empty reply."""

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply; the last delta carries the `Completion`, with the text of all deltas.

        Closing the generator early cancels the call. By default, the reply comes in one piece.
        """
        return in_one_piece(self, request)

    async def aclose(self) -> None:
        """Closes connections and frees memory; the model can be used again afterwards."""
        return


async def in_one_piece(model: Model, request: Request) -> AsyncGenerator[Delta, None]:
    """Yields the complete reply of a model as a stream of one piece."""
    completion = await model.complete(request)
    yield Delta(text=completion.text)
    yield Delta(completion=completion)


class OnePieceModel:
    """Base class of models that know their reply only when it is complete; subclasses define `complete`."""

    def stream(self: Model, request: Request) -> AsyncGenerator[Delta, None]:
        """Yields the reply in one piece."""
        return in_one_piece(self, request)

    async def aclose(self) -> None:
        """Does nothing; there are no resources to release."""


class StreamingModel:
    """Base class of models that generate every reply piece by piece; subclasses define `stream`."""

    async def complete(self: Model, request: Request) -> Completion:
        """Returns the complete reply."""
        return await collect(self.stream(request))


class WrapperModel:
    """Base class of models that wrap another; name, capabilities and price are read from it on every access."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def name(self) -> str:
        """The name of the wrapped model."""
        return self.model.name

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the wrapped model, which may change when it is loaded."""
        return self.model.capabilities

    @property
    def price(self) -> Price | None:
        """The price of the wrapped model."""
        return self.model.price

    async def aclose(self) -> None:
        """Closes the wrapped model."""
        await self.model.aclose()


FORMATS = {"json_schema": "a JSON schema", "grammar": "a grammar"}
"""What errors call the capabilities that are not a word."""


def require(model: Model, request: Request) -> None:
    """Raises `BadRequestError` if `request` needs a feature that `model` does not support."""
    capabilities = model.capabilities
    missing = [FORMATS.get(name, name) for name in request.needs if not getattr(capabilities, name)]
    if missing:
        raise BadRequestError(f"model {model.name!r} can't take {' or '.join(missing)}", model=model.name)


def priced(usage: Usage, price: Price | None) -> Usage:
    """Adds the cost to the usage of one call, or counts it as unpriced if its price or its tokens are unknown.

    Counts above `MAX_TOKENS_PER_CALL` are lowered to it.
    """
    largest = max(_token_counts(usage))
    if largest > MAX_TOKENS_PER_CALL:
        usage = usage.model_copy(update={name: min(getattr(usage, name), MAX_TOKENS_PER_CALL) for name in TOKEN_COUNTS})
    counted = usage.input_tokens or usage.output_tokens
    if price is None or (not counted and (price.input or price.output)):
        return usage.model_copy(update={"calls": 1, "unpriced_calls": 1})
    if not largest:
        return usage.model_copy(update={"calls": 1, "cost": price.per_call})
    cost = price.cost(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    return usage.model_copy(update={"calls": 1, "cost": cost})


def checked(completion: Completion, request: Request) -> Completion:
    """Returns `completion` if it has text or a tool call.

    Without either it is accepted if `request` ends with the results of tools, to which a model may have nothing to add.

    Raises:
        OutputLimitError: it has neither, because the model used up its output tokens.
        BadResponseError: it has neither for another reason.
    """
    if completion.message.tool_calls or completion.text.strip():
        return completion
    is_after_tools = request.last_calls is not None
    if is_after_tools and completion.finish_reason == "stop":
        return completion
    model = completion.model
    if completion.finish_reason == "length":
        reason = "it ran out of output tokens before it wrote any answer; raise max_tokens"
        raise OutputLimitError(f"{model}: {reason}", model=model, usage=completion.usage)
    if completion.finish_reason == "content_filter":
        reason = "the vendor's content filter withheld the answer"
        raise BadResponseError(f"{model}: {reason}", model=model, retryable=False, usage=completion.usage)
    only_reasoning = any(isinstance(part, ReasoningPart) for part in completion.message.content)
    reason = "it ended after its reasoning, without an answer" if only_reasoning else "the reply is empty"
    raise BadResponseError(f"{model}: {reason}", model=model, usage=completion.usage)


async def collect(deltas: AsyncGenerator[Delta, None]) -> Completion:
    """Reads a stream to its completion and closes it; raises `BadResponseError` if it ends without one."""
    async with aclosing(deltas):
        async for delta in deltas:
            if delta.completion is not None:
                return delta.completion
    raise BadResponseError("the stream ended before the reply was complete", model="unknown")


def status_error(
    message: str, *, model: str, status: int, retry_after: float | None = None, is_overload: bool = False
) -> ModelError:
    """Builds the error for an HTTP status.

    With `is_overload`, the vendor itself says that it is overloaded; a status of 503 may be a gateway's, whose request
    the model got.
    """
    if is_overload:
        return OverloadedError(message, model=model, status=status, retry_after=retry_after)
    if 300 <= status < 400:
        reason = "redirects are not followed, because they could leak the key; pass the final address as base_url"
        return BadRequestError(f"{model}: HTTP status {status}: {reason}", model=model, status=status)
    if status in ERRORS_BY_STATUS:
        return ERRORS_BY_STATUS[status](message, model=model, status=status, retry_after=retry_after)
    if status < 500:
        return BadRequestError(message, model=model, status=status)
    return ModelError(message, model=model, status=status, retryable=True, retry_after=retry_after)


def parse_retry_after(header: str | None) -> float | None:
    """Returns the seconds to wait that a `Retry-After` header names as a number or a date; `None` if it names none."""
    seconds = parse_seconds(header)
    if seconds is not None or header is None:
        return seconds
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  slow to import, and seldom needed

    try:
        date = parsedate_to_datetime(header)
    except (ValueError, OverflowError):  # of a year that is too large
        return None
    return max((date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)


async def within(seconds: float | None, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yields from `items` and closes it; raises `TimeoutError` after `seconds`, including the consumer's time."""
    deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
    async with aclosing(items):
        while True:
            # A timeout around the whole loop could cancel the consumer between two items.
            async with asyncio.timeout_at(deadline):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """Parses the arguments of a tool call into an object; invalid JSON is returned under the key `invalid_json`."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"invalid_json": call.arguments}
