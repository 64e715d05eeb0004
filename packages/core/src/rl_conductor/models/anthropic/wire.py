"""Translates requests to Anthropic's Messages API, without I/O; `reply` translates its replies.

Reasoning keeps its signature, prefixed with `anthropic:`, so that it is sent back unchanged and reasoning of other
vendors is left out. Tool call arguments that are not a JSON object are sent back under the key `invalid_json`.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, Required, TypeAlias, TypedDict

from rl_conductor.errors import BadRequestError
from rl_conductor.models.anthropic.prompt_caching import cached_system, mark_turns
from rl_conductor.models.attachments import move_attachments
from rl_conductor.models.vendor_errors import MALFORMED_REPLY_ERRORS
from rl_conductor.types import (
    ContentPart,
    FilePart,
    ImagePart,
    JsonFormat,
    Message,
    ReasoningPart,
    Request,
    TextPart,
    Tool,
)
from rl_conductor.types.messages import arguments_of

if TYPE_CHECKING:
    from anthropic import types as wire

    MediaBlock: TypeAlias = wire.TextBlockParam | wire.ImageBlockParam | wire.DocumentBlockParam
    ReasoningBlock: TypeAlias = wire.ThinkingBlockParam | wire.RedactedThinkingBlockParam
    Block: TypeAlias = MediaBlock | ReasoningBlock | wire.ToolUseBlockParam | wire.ToolResultBlockParam

DEFAULT_MAX_TOKENS = 4096
"""Output limit for requests without one, because the API requires it."""

THINKING_PREFIX = "anthropic:thinking:"
"""Begins the signature of reasoning that Anthropic signed."""
REDACTED_PREFIX = "anthropic:redacted:"
"""Begins the signature of reasoning that Anthropic encrypted, of which there is no text."""

ACCEPTING = ("user", "tool")
"""The roles of messages with images and files."""

ImageType = Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
IMAGE_TYPES: dict[str, ImageType] = {
    "image/jpeg": "image/jpeg",
    "image/png": "image/png",
    "image/gif": "image/gif",
    "image/webp": "image/webp",
}


class Body(TypedDict, total=False):
    """The body of a request."""

    model: Required[str]
    max_tokens: Required[int]
    messages: Required[list[wire.MessageParam]]
    system: list[wire.TextBlockParam]
    tools: list[wire.ToolParam]
    tool_choice: wire.ToolChoiceParam
    output_config: wire.OutputConfigParam
    stop_sequences: list[str]
    temperature: float
    top_p: float


# ---------------------------------------------------------------------------------------- requests


def body_of(request: Request, *, model: str) -> Body:
    """Builds the body of a request. Raises `BadRequestError` for features that the API lacks."""
    sampling = request.sampling
    if sampling.seed is not None:
        raise BadRequestError(f"{model} does not support sampling.seed: remove it", model=model)
    result = Body(
        model=model.partition(":")[2],
        max_tokens=sampling.max_tokens or DEFAULT_MAX_TOKENS,
        messages=_turns(model, request),
    )
    if system := "\n\n".join(message.text for message in request.messages if message.role == "system"):
        result["system"] = cached_system(system)
    if sampling.stop:
        result["stop_sequences"] = list(sampling.stop)
    if request.tools:
        result["tools"] = [_tool(tool) for tool in request.tools]
        result["tool_choice"] = _tool_choice(request)
    elif called := _called_tools(request):
        result["tools"] = [_tool(tool) for tool in called]
        result["tool_choice"] = {"type": "none"}
    if output := _output_config(model, request):
        result["output_config"] = output
    if sampling.temperature is not None:
        result["temperature"] = sampling.temperature
    if sampling.top_p is not None:
        result["top_p"] = sampling.top_p
    return result


def _tool(tool: Tool) -> wire.ToolParam:
    param: wire.ToolParam = {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
    return param if tool.strict is None else {**param, "strict": tool.strict}


def _called_tools(request: Request) -> list[Tool]:
    """Returns the tools of earlier calls, without their schemas; the API rejects calls if no tools are defined."""
    names = dict.fromkeys(call.name for message in request.messages for call in message.tool_calls)
    return [Tool(name=name) for name in names]


def _tool_choice(request: Request) -> wire.ToolChoiceParam:
    single = not request.parallel_tool_calls
    match request.tool_choice:
        case "auto":
            return {"type": "auto", "disable_parallel_tool_use": single}
        case "required":
            return {"type": "any", "disable_parallel_tool_use": single}
        case "none":
            return {"type": "none"}
        case name:
            return {"type": "tool", "name": name, "disable_parallel_tool_use": single}


def _output_config(model: str, request: Request) -> wire.OutputConfigParam:
    result: wire.OutputConfigParam = {}
    if request.sampling.effort:
        result["effort"] = "low" if request.sampling.effort == "minimal" else request.sampling.effort
    if isinstance(request.response_format, JsonFormat):
        schema = request.response_format.json_schema
        if schema is None:
            raise BadRequestError(f"{model} writes JSON only with a schema: set json_schema", model=model)
        result["format"] = {"type": "json_schema", "schema": claude_schema(schema)}
    return result


def claude_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Converts `schema` with the SDK to the subset that the API supports; passes it on unchanged if that fails."""
    # Imported here, because the adapter reports a missing SDK with a better message.
    from anthropic import transform_schema  # noqa: PLC0415

    try:
        return transform_schema(_split_type_lists(schema))
    except (*MALFORMED_REPLY_ERRORS, AssertionError):
        return schema


def _split_type_lists(schema: Any) -> Any:
    """Rewrites lists of types in `schema` as `anyOf`, the form that the SDK supports."""
    if isinstance(schema, list):
        return [_split_type_lists(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: _split_type_lists(value) for name, value in schema.items()}
    if not isinstance(result.get("type"), list):
        return result
    types = result.pop("type")
    return {
        "anyOf": [{"type": type_name} if type_name == "null" else {**result, "type": type_name} for type_name in types]
    }


def _turns(model: str, request: Request) -> list[wire.MessageParam]:
    """Merges messages into alternating turns of user and assistant; tool results belong to the user."""
    messages = move_attachments(request.messages, accepting=ACCEPTING)
    conversation = [message for message in messages if message.role != "system"]
    turns: list[wire.MessageParam] = []
    for assistant, messages in groupby(conversation, key=lambda message: message.role == "assistant"):
        blocks = [block for message in messages for block in _blocks(model, message)]
        if blocks:
            turns.append(_turn(assistant, blocks))
    mark_turns(turns)
    return turns


def _turn(assistant: bool, blocks: list[Block]) -> wire.MessageParam:
    if assistant:
        return {"role": "assistant", "content": blocks}
    return {"role": "user", "content": blocks}


def _blocks(model: str, message: Message) -> Iterator[Block]:
    if message.role == "tool":
        content = [block for part in message.content for block in _media(model, part)]
        if message.is_error and not content:  # the API refuses an empty error
            content = [{"type": "text", "text": "error"}]
        result: wire.ToolResultBlockParam = {
            "type": "tool_result",
            "tool_use_id": message.tool_call_id or "",
            "content": content,
        }
        yield {**result, "is_error": True} if message.is_error else result
        return
    for part in message.content:
        yield from _reasoning_block(part) if isinstance(part, ReasoningPart) else _media(model, part)
    for call in message.tool_calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_of(call)}


def _reasoning_block(part: ReasoningPart) -> Iterator[Block]:
    signature = part.signature or ""
    if signature.startswith(THINKING_PREFIX):
        yield {"type": "thinking", "thinking": part.text, "signature": signature.removeprefix(THINKING_PREFIX)}
    elif signature.startswith(REDACTED_PREFIX):
        yield {"type": "redacted_thinking", "data": signature.removeprefix(REDACTED_PREFIX)}


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
