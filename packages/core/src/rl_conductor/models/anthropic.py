"""`AnthropicModel`: Anthropic's models, through the vendor's own SDK.

What the Messages API has no word for raises `BadRequestError` before the call: a seed, a grammar, JSON of
no given schema. `temperature` and `top_p` are sent as given, though the SDK no longer names them: models that
stopped taking them answer with a `BadRequestError` of the vendor's. Thoughts carry their signature, marked as
Anthropic's, so that they go back unchanged and another vendor's are never sent here.
"""

from __future__ import annotations

import asyncio
import json
import os
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing, contextmanager
from itertools import groupby
from typing import Literal, Required, TypedDict

from rl_conductor.errors import (
    BadRequestError,
    BadResponseError,
    ConfigError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
)
from rl_conductor.models.base import (
    Capabilities,
    arguments_of,
    checked,
    priced,
    require,
    seconds,
    status_error,
    within,
    without_secrets,
)
from rl_conductor.models.prices import price_of
from rl_conductor.sync import PerLoop
from rl_conductor.types import (
    Completion,
    ContentPart,
    Delta,
    FilePart,
    FinishReason,
    ImagePart,
    JsonFormat,
    Message,
    Price,
    ReasoningPart,
    Request,
    Sampling,
    TextPart,
    Tool,
    ToolCall,
    Usage,
)

try:
    import anthropic
    import httpx2
    from anthropic import types as wire
except ImportError as missing:
    raise ConfigError("Anthropic's models need its SDK: pip install 'rl-conductor[anthropic]'") from missing

DEFAULT_MAX_TOKENS = 4096
"""Sent when the request names no limit, for the API wants one."""

DEFAULT_TIMEOUT = 600.0
"""Seconds that a request without a timeout of its own may be silent."""

CAPABILITIES = Capabilities(tools=True, images=True, files=True, json_schema=True)

FINISH: dict[str | None, FinishReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",
    "refusal": "content_filter",
}
"""The rest (`end_turn`, `stop_sequence`) is `stop`."""

STATUS_BY_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""For errors in the middle of a stream, whose HTTP status is 200."""

TOO_LONG = ("prompt is too long", "exceed context limit", "context window")

MALFORMED = (ValueError, TypeError, LookupError, AttributeError)
"""What the SDK trips over when a reply is not what the protocol promises, for it does not check them."""

BROKEN_OFF = (httpx2.ReadError, httpx2.RemoteProtocolError)

LONGEST_ERROR = 1000
"""Characters of a vendor's message that are worth quoting."""

THINKING = "anthropic:thinking:"
REDACTED = "anthropic:redacted:"

ImageType = Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
IMAGE_TYPES: dict[str, ImageType] = {
    "image/jpeg": "image/jpeg",
    "image/png": "image/png",
    "image/gif": "image/gif",
    "image/webp": "image/webp",
}

MediaBlock = wire.TextBlockParam | wire.ImageBlockParam | wire.DocumentBlockParam
Block = (
    MediaBlock
    | wire.ThinkingBlockParam
    | wire.RedactedThinkingBlockParam
    | wire.ToolUseBlockParam
    | wire.ToolResultBlockParam
)


class Parameters(TypedDict, total=False):
    """What `messages.create` and `messages.stream` are both called with."""

    model: Required[str]
    max_tokens: Required[int]
    messages: Required[list[wire.MessageParam]]
    timeout: Required[float]
    system: str
    tools: list[wire.ToolParam]
    tool_choice: wire.ToolChoiceParam
    output_config: wire.OutputConfigParam
    stop_sequences: list[str]
    extra_body: dict[str, object]


class AnthropicModel:
    """One of Anthropic's models, or one behind a server that speaks its Messages API."""

    def __init__(
        self, name: str, *, api_key: str | None = None, base_url: str | None = None, price: Price | None = None
    ) -> None:
        """Make the model; nothing is sent yet.

        Args:
            name: the model as Anthropic names it.
            api_key: else the environment's `ANTHROPIC_API_KEY`.
            base_url: another server's address; else the vendor's.
            price: else looked up by name.

        Raises:
            ConfigError: no key.
        """
        key = api_key or os.environ.get("ANTHROPIC_API_KEY")
        if not key:
            raise ConfigError(f"anthropic:{name} needs a key: set ANTHROPIC_API_KEY or pass api_key=...")
        self.name = f"anthropic:{name}"
        self.price = price or price_of("anthropic", name)
        self.capabilities = CAPABILITIES
        self._key = key
        self._clients = PerLoop(lambda: anthropic.AsyncAnthropic(api_key=key, base_url=base_url, max_retries=0))

    def __repr__(self) -> str:
        return f"AnthropicModel({self.name.partition(':')[2]!r})"

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        parameters = _parameters(self, request)
        with self._translated():
            async with asyncio.timeout(request.timeout):
                message = await self._clients.get().messages.create(**parameters)
            return self._completion(message, {})

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """The reply as it is made."""
        parameters = _parameters(self, request)
        with self._translated():
            async with aclosing(within(request.timeout, self._deltas(parameters))) as deltas:
                async for delta in deltas:
                    yield delta

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        client = self._clients.drop()
        if client is not None:
            await client.close()

    async def _deltas(self, parameters: Parameters) -> AsyncGenerator[Delta, None]:
        arguments: dict[int, str] = {}
        async with self._clients.get().messages.stream(**parameters) as events:
            async for event in events:
                if event.type == "text":
                    yield Delta(text=event.text)
                elif event.type == "thinking":
                    yield Delta(reasoning=event.thinking)
                elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                    arguments[event.index] = arguments.get(event.index, "") + event.delta.partial_json
                elif event.type == "message_stop":
                    yield Delta(completion=self._completion(event.message, arguments))
                    return
        raise BadResponseError(f"{self.name}: the stream ended before the reply was complete", model=self.name)

    def _completion(self, message: object, arguments: dict[int, str]) -> Completion:
        # The SDK builds replies without checking them, and hands over as text what is no JSON at all.
        if not isinstance(message, wire.Message) or message.type != "message" or message.stop_reason is None:
            raise BadResponseError(f"{self.name}: the reply is no message of the protocol", model=self.name)
        parts, calls = _parts(message.content, arguments)
        completion = Completion(
            message=Message(role="assistant", content=parts, tool_calls=calls),
            usage=priced(_usage(message.usage), self.price),
            finish_reason=FINISH.get(message.stop_reason, "stop"),
            model=message.model,
        )
        return checked(completion)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (anthropic.AnthropicError, httpx2.HTTPError, TimeoutError, *MALFORMED) as problem:
            raise self._error(problem) from None  # the SDK's own error may quote the key

    def _error(self, problem: Exception) -> ModelError:
        text = without_secrets(f"{self.name}: {_said(problem)}", [self._key])[:LONGEST_ERROR]
        if isinstance(problem, anthropic.APIStatusError):
            return self._refusal(problem, text)
        if isinstance(problem, anthropic.APITimeoutError | httpx2.TimeoutException | TimeoutError):
            return ModelTimeoutError(f"{self.name}: no answer in time", model=self.name)
        if isinstance(problem.__cause__ or problem, BROKEN_OFF):
            return BadResponseError(f"{self.name}: the connection closed before the reply did", model=self.name)
        if isinstance(problem, anthropic.APIConnectionError):
            return ModelError(text, model=self.name, retryable=True)
        return BadResponseError(text, model=self.name)

    def _refusal(self, problem: anthropic.APIStatusError, text: str) -> ModelError:
        status = problem.status_code if problem.status_code >= 400 else STATUS_BY_TYPE.get(str(problem.type), 500)
        if status == 400 and any(phrase in text for phrase in TOO_LONG):
            return ContextLengthError(text, model=self.name, status=status)
        wait = seconds(problem.response.headers.get("retry-after"))
        return status_error(text, model=self.name, status=status, retry_after=wait)


def _said(problem: Exception) -> str:
    match problem:
        case anthropic.APIStatusError(status_code=status):
            return f"{problem.api_message or problem.message} (HTTP {status})"
        case anthropic.APIError():
            return f"{problem.message} {problem.__cause__ or ''}".rstrip()
    return f"{type(problem).__name__}: {problem}"


# ---------------------------------------------------------------------------------------- requests


def _parameters(model: AnthropicModel, request: Request) -> Parameters:
    require(model, request)
    sampling = request.sampling
    if sampling.seed is not None:
        raise BadRequestError(f"{model.name} takes no seed: leave sampling.seed out", model=model.name)
    made = Parameters(
        model=model.name.removeprefix("anthropic:"),
        max_tokens=sampling.max_tokens or DEFAULT_MAX_TOKENS,
        messages=_turns(model, request),
        timeout=request.timeout or DEFAULT_TIMEOUT,
    )
    if system := "\n\n".join(message.text for message in request.messages if message.role == "system"):
        made["system"] = system
    if sampling.stop:
        made["stop_sequences"] = list(sampling.stop)
    if request.tools:
        made["tools"] = [_tool(tool) for tool in request.tools]
        made["tool_choice"] = _tool_choice(request)
    if output := _output_config(model, request):
        made["output_config"] = output
    if drawn := _drawn(sampling):
        made["extra_body"] = drawn
    return made


def _drawn(sampling: Sampling) -> dict[str, object]:
    given = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    return {name: value for name, value in given.items() if value is not None}


def _tool(tool: Tool) -> wire.ToolParam:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _tool_choice(request: Request) -> wire.ToolChoiceParam:
    one = not request.parallel_tool_calls
    match request.tool_choice:
        case "auto":
            return {"type": "auto", "disable_parallel_tool_use": one}
        case "required":
            return {"type": "any", "disable_parallel_tool_use": one}
        case "none":
            return {"type": "none"}
        case name:
            return {"type": "tool", "name": name, "disable_parallel_tool_use": one}


def _output_config(model: AnthropicModel, request: Request) -> wire.OutputConfigParam:
    made: wire.OutputConfigParam = {}
    if request.sampling.effort:
        made["effort"] = "low" if request.sampling.effort == "minimal" else request.sampling.effort
    if isinstance(request.response_format, JsonFormat):
        schema = request.response_format.json_schema
        if schema is None:
            raise BadRequestError(f"{model.name} writes JSON only of a schema: give json_schema", model=model.name)
        made["format"] = {"type": "json_schema", "schema": schema}
    return made


def _turns(model: AnthropicModel, request: Request) -> list[wire.MessageParam]:
    """Turns of user and assistant, who alternate; tool results are the user's."""
    said = [message for message in request.messages if message.role != "system"]
    turns: list[wire.MessageParam] = []
    for assistant, messages in groupby(said, key=lambda message: message.role == "assistant"):
        blocks = [block for message in messages for block in _blocks(model, message)]
        if blocks and assistant:
            turns.append(wire.AssistantMessageParam(role="assistant", content=blocks))
        elif blocks:
            turns.append(wire.UserMessageParam(role="user", content=blocks))
    return turns


def _blocks(model: AnthropicModel, message: Message) -> Iterator[Block]:
    if message.role == "tool":
        content = [block for part in message.content for block in _media(model, part)]
        yield {"type": "tool_result", "tool_use_id": message.tool_call_id or "", "content": content}
        return
    for part in message.content:
        yield from _thought(part) if isinstance(part, ReasoningPart) else _media(model, part)
    for call in message.tool_calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_of(call)}


def _thought(part: ReasoningPart) -> Iterator[Block]:
    signature = part.signature or ""
    if signature.startswith(THINKING):
        yield {"type": "thinking", "thinking": part.text, "signature": signature.removeprefix(THINKING)}
    elif signature.startswith(REDACTED):
        yield {"type": "redacted_thinking", "data": signature.removeprefix(REDACTED)}


def _media(model: AnthropicModel, part: ContentPart) -> Iterator[MediaBlock]:
    match part:
        case TextPart(text=text) if text:  # the API refuses empty text
            yield {"type": "text", "text": text}
        case ImagePart():
            yield {"type": "image", "source": _image(model, part)}
        case FilePart():
            yield {"type": "document", "title": part.name, "source": _document(model, part)}


def _image(model: AnthropicModel, part: ImagePart) -> wire.URLImageSourceParam | wire.Base64ImageSourceParam:
    if part.url:
        return {"type": "url", "url": part.url}
    if part.media_type not in IMAGE_TYPES:
        raise BadRequestError(
            f"{model.name} can't see {part.media_type!r}: send one of {', '.join(IMAGE_TYPES)}", model=model.name
        )
    return {"type": "base64", "media_type": IMAGE_TYPES[part.media_type], "data": part.data or ""}


def _document(model: AnthropicModel, part: FilePart) -> wire.Base64PDFSourceParam | wire.PlainTextSourceParam:
    if part.media_type == "application/pdf":
        return {"type": "base64", "media_type": "application/pdf", "data": part.data}
    if not part.media_type.startswith("text/"):
        raise BadRequestError(
            f"{model.name} can't read {part.media_type!r}: send application/pdf or text", model=model.name
        )
    try:
        return {"type": "text", "media_type": "text/plain", "data": b64decode(part.data, validate=True).decode()}
    except ValueError:
        raise BadRequestError(f"the file {part.name!r} is not base64 of UTF-8 text", model=model.name) from None


# ----------------------------------------------------------------------------------------- replies


def _parts(
    blocks: Iterable[wire.ContentBlock], arguments: dict[int, str]
) -> tuple[tuple[ContentPart, ...], tuple[ToolCall, ...]]:
    """What a reply says and the calls it makes; `arguments` by block, as streamed, else as the SDK read them."""
    parts: list[ContentPart] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(blocks):
        if block.type == "text":
            parts.append(TextPart(text=block.text))
        elif block.type == "thinking":
            parts.append(ReasoningPart(text=block.thinking, signature=THINKING + block.signature))
        elif block.type == "redacted_thinking":
            parts.append(ReasoningPart(text="", signature=REDACTED + block.data))
        elif block.type == "tool_use":
            written = arguments.get(index) or json.dumps(block.input)
            calls.append(ToolCall(id=block.id, name=block.name, arguments=written))
    return tuple(parts), tuple(calls)


def _usage(usage: wire.Usage) -> Usage:
    cached = usage.cache_read_input_tokens or 0
    details = usage.output_tokens_details
    return Usage(
        input_tokens=usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0),
        cached_tokens=cached,
        output_tokens=usage.output_tokens,
        reasoning_tokens=details.thinking_tokens if details else 0,
    )
