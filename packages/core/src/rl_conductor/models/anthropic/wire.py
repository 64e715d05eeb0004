"""Anthropic's Messages API: our requests in its words, its replies in ours. Pure translation.

Thoughts carry their signature, marked as Anthropic's, so that they go back unchanged and another vendor's are
never sent there. Arguments that are no JSON object go back as what the model wrote, under a key that says so.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, Required, TypeAlias, TypedDict

from rl_conductor.errors import BadRequestError
from rl_conductor.models.base import DEFAULT_TIMEOUT, arguments_of
from rl_conductor.types import (
    ContentPart,
    FilePart,
    FinishReason,
    ImagePart,
    JsonFormat,
    Message,
    ReasoningPart,
    Request,
    Sampling,
    TextPart,
    Tool,
    ToolCall,
    Usage,
)

if TYPE_CHECKING:
    from anthropic import types as wire

    MediaBlock: TypeAlias = wire.TextBlockParam | wire.ImageBlockParam | wire.DocumentBlockParam
    ThoughtBlock: TypeAlias = wire.ThinkingBlockParam | wire.RedactedThinkingBlockParam
    Block: TypeAlias = MediaBlock | ThoughtBlock | wire.ToolUseBlockParam | wire.ToolResultBlockParam

DEFAULT_MAX_TOKENS = 4096
"""Sent when the request names no limit, for the API wants one."""

FINISH: dict[str | None, FinishReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",
    "refusal": "content_filter",
}
"""The rest (`end_turn`, `stop_sequence`) is `stop`."""

THINKING = "anthropic:thinking:"
REDACTED = "anthropic:redacted:"

ImageType = Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
IMAGE_TYPES: dict[str, ImageType] = {
    "image/jpeg": "image/jpeg",
    "image/png": "image/png",
    "image/gif": "image/gif",
    "image/webp": "image/webp",
}


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


# ---------------------------------------------------------------------------------------- requests


def parameters_of(request: Request, *, model: str) -> Parameters:
    """The call's parameters. Raises `BadRequestError` for what the API has no word for."""
    sampling = request.sampling
    if sampling.seed is not None:
        raise BadRequestError(f"{model} takes no seed: leave sampling.seed out", model=model)
    made = Parameters(
        model=model.partition(":")[2],
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


def _output_config(model: str, request: Request) -> wire.OutputConfigParam:
    made: wire.OutputConfigParam = {}
    if request.sampling.effort:
        made["effort"] = "low" if request.sampling.effort == "minimal" else request.sampling.effort
    if isinstance(request.response_format, JsonFormat):
        schema = request.response_format.json_schema
        if schema is None:
            raise BadRequestError(f"{model} writes JSON only of a schema: give json_schema", model=model)
        made["format"] = {"type": "json_schema", "schema": _strict(schema)}
    return made


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` in the words that the API takes, as the SDK puts it; what that can't read, the API has to judge."""
    # Inside, because the adapter says it in our words when the SDK is missing.
    from anthropic import transform_schema  # noqa: PLC0415

    try:
        return transform_schema(_one_type_each(schema))
    except (ValueError, AssertionError):
        return schema


def _one_type_each(schema: Any) -> Any:
    """`schema` with lists of types as alternatives, which is how the SDK reads them."""
    if isinstance(schema, list):
        return [_one_type_each(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _one_type_each(value) for name, value in schema.items()}
    if not isinstance(made.get("type"), list):
        return made
    kinds = made.pop("type")
    return {"anyOf": [{"type": kind} if kind == "null" else {**made, "type": kind} for kind in kinds]}


def _turns(model: str, request: Request) -> list[wire.MessageParam]:
    """Turns of user and assistant, who alternate; tool results are the user's."""
    said = [message for message in request.messages if message.role != "system"]
    turns: list[wire.MessageParam] = []
    for assistant, messages in groupby(said, key=lambda message: message.role == "assistant"):
        blocks = [block for message in messages for block in _blocks(model, message)]
        if blocks:
            turns.append(_turn(assistant, blocks))
    return turns


def _turn(assistant: bool, blocks: list[Block]) -> wire.MessageParam:
    if assistant:
        return {"role": "assistant", "content": blocks}
    return {"role": "user", "content": blocks}


def _blocks(model: str, message: Message) -> Iterator[Block]:
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


def _media(model: str, part: ContentPart) -> Iterator[MediaBlock]:
    match part:
        case TextPart(text=text) if text.strip():  # the API refuses blank text
            yield {"type": "text", "text": text}
        case ImagePart():
            yield {"type": "image", "source": _image(model, part)}
        case FilePart():
            yield {"type": "document", "title": part.name, "source": _document(model, part)}


def _image(model: str, part: ImagePart) -> wire.URLImageSourceParam | wire.Base64ImageSourceParam:
    if part.url:
        return {"type": "url", "url": part.url}
    if part.media_type not in IMAGE_TYPES:
        raise BadRequestError(
            f"{model} can't see {part.media_type!r}: send one of {', '.join(IMAGE_TYPES)}", model=model
        )
    return {"type": "base64", "media_type": IMAGE_TYPES[part.media_type], "data": part.data or ""}


def _document(model: str, part: FilePart) -> wire.Base64PDFSourceParam | wire.PlainTextSourceParam:
    if part.media_type == "application/pdf":
        return {"type": "base64", "media_type": "application/pdf", "data": part.data}
    if not part.media_type.startswith("text/"):
        raise BadRequestError(f"{model} can't read {part.media_type!r}: send application/pdf or text", model=model)
    try:
        return {"type": "text", "media_type": "text/plain", "data": b64decode(part.data, validate=True).decode()}
    except ValueError:
        raise BadRequestError(f"the file {part.name!r} is not base64 of UTF-8 text", model=model) from None


# ----------------------------------------------------------------------------------------- replies


def parts_of(
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


def usage_of(usage: wire.Usage) -> Usage:
    """Tokens as we count them: the API counts cached ones, and those it cached just now, beside the fresh ones."""
    cached, kept = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    details = usage.output_tokens_details
    return Usage(
        input_tokens=usage.input_tokens + cached + kept,
        cached_tokens=cached,
        cache_write_tokens=kept,
        output_tokens=usage.output_tokens,
        reasoning_tokens=details.thinking_tokens if details else 0,
    )
