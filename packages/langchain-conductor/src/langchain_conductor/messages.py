"""Converts LangChain's messages and usage to the values of `rl_conductor`, and back.

Functions that begin with `core_` return the core's values, those that begin with `lc_` return LangChain's. Histories
come from users, stores and models: our data in them is validated, and ignored if it is malformed.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, cast, get_args

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages import ToolCall as LCToolCall
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from pydantic import ValidationError

from langchain_conductor.vendor_blocks import block_type, standard_block
from rl_conductor.errors import ConfigError
from rl_conductor.integration import (
    REDACTED_PREFIX,
    THINKING_PREFIX,
    THOUGHT_PREFIX,
    TIERS_WITH_OWN_PRICE,
    labelled_text,
)
from rl_conductor.types import (
    ContentPart,
    Continuation,
    FilePart,
    ImageDetail,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCall,
    Usage,
    Value,
)

PROVIDER = "conductor"
"""The provider name of a conductor in LangChain's traces."""
TURN_STATE_KEY = "conductor"
"""The key of `TurnState` in the `additional_kwargs` of an AI message."""
VENDOR_STATE_PREFIX = "langchain:"
"""The prefix of signatures of reasoning that are the state of a LangChain model, for that model alone."""

REASONING_KEY = "reasoning_content"
"""The key of reasoning in the `additional_kwargs` of an AI message, which LangChain reads."""

PROVIDER_KEY = "model_provider"
"""The key in the `response_metadata` of an AI message that names the vendor of its model."""
SIGNATURE_PREFIXES = {"anthropic": THINKING_PREFIX, "google_genai": THOUGHT_PREFIX, "google_vertexai": THOUGHT_PREFIX}
"""The prefixes of signatures in the core, by vendor; in LangChain's blocks, signatures have none."""

OPENAI_ROLE_KEY = "__openai_role__"
"""LangChain's key, in the `additional_kwargs` of a system message, for OpenAI's role `developer`."""

CACHE_WRITE_DETAILS = ("cache_creation", "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
"""Names of tokens written to a vendor's cache. Anthropic's package sets either the first one or those by lifetime."""

FETCHED_TYPES = ("file", "input_file", "image", "input_image", "media", "document")
"""Types of blocks that may have an address or an id at their vendor instead of their content."""
MEDIA_TYPES = (*FETCHED_TYPES, "audio", "input_audio", "video", "container_upload")
"""Types of blocks whose absence from a reply is noted; others, such as a vendor's searches, are no part of its text."""
LEFT_OUT = "[a block of type {kind!r} is left out: it can't be sent to every worker]"
"""The text in the place of a block of an AI message that can't be converted."""


class TurnState(Value):
    """State that an AI message carries to the next turn, as plain JSON."""

    continuation: Continuation | None = None
    reasoning: tuple[ReasoningPart, ...] = ()
    """Signed reasoning, which its vendor requires back unchanged."""


# --------------------------------------------------------------------------------- LangChain to core


def core_messages(messages: Iterable[BaseMessage]) -> tuple[Message, ...]:
    """Converts a conversation to the core's messages.

    Raises:
        ConfigError: a message contains a block that no worker can take, such as audio.
    """
    return tuple(core_message(message) for message in messages)


def core_message(message: BaseMessage) -> Message:
    """Converts one message to the core's.

    Raises:
        ConfigError: it contains a block that no worker can take, such as audio.
    """
    match message:
        case AIMessage():
            return _core_reply(message)
        case ToolMessage():
            fields: Any = {"tool_call_id": message.tool_call_id, "name": message.name}
            is_error = message.status == "error"
            return Message(role="tool", content=tuple(_parts(message)), is_error=is_error, **fields)
        case HumanMessage():
            return Message(role="user", content=tuple(_parts(message)), name=message.name)
        case SystemMessage():
            is_developer = message.additional_kwargs.get(OPENAI_ROLE_KEY) == "developer"
            content = tuple(_parts(message))
            return Message(role="system", content=content, name=message.name, is_developer=is_developer)
        case ChatMessage(role="developer"):
            return Message(role="system", content=tuple(_parts(message)), name=message.name, is_developer=True)
        case ChatMessage(role="user" | "system" | "assistant" as role):
            return Message(role=cast("Any", role), content=tuple(_parts(message)), name=message.name)
    raise ConfigError(f"a {type(message).__name__} can't be sent; write a system, human, AI or tool message")


def core_usage(usage: UsageMetadata | None) -> Usage:
    """Converts token counts; calls and cost stay 0."""
    if usage is None:
        return Usage()
    input_tokens, output_tokens = max(usage["input_tokens"], 0), max(usage["output_tokens"], 0)
    details = usage.get("input_token_details", {})
    cached_tokens = max(min(_detail(details, "cache_read"), input_tokens), 0)
    cache_writes = sum(_detail(details, name) for name in CACHE_WRITE_DETAILS)
    cache_write_tokens = max(min(cache_writes, input_tokens - cached_tokens), 0)
    reasoning_tokens = _detail(usage.get("output_token_details", {}), "reasoning")
    return Usage(
        input_tokens=input_tokens,
        cached_tokens=cached_tokens,
        cache_write_tokens=cache_write_tokens,
        output_tokens=output_tokens,
        reasoning_tokens=max(min(reasoning_tokens, output_tokens), 0),
    )


def _detail(details: Mapping[str, Any], name: str) -> int:
    """Returns a count; its name begins with the service tier of OpenAI, if that has prices of its own."""
    return sum(details.get(f"{prefix}{name}") or 0 for prefix in ("", *(f"{tier}_" for tier in TIERS_WITH_OWN_PRICE)))


def _core_reply(message: AIMessage) -> Message:
    state = _turn_state(message)
    parts = [part for part in _parts(message) if not (state.reasoning and isinstance(part, ReasoningPart))]
    return Message(
        role="assistant",
        content=(*state.reasoning, *parts),
        tool_calls=tuple(_core_calls(message)),
        name=message.name,
        continuation=state.continuation,
    )


def _turn_state(message: AIMessage) -> TurnState:
    try:
        return TurnState.model_validate(message.additional_kwargs.get(TURN_STATE_KEY, {}))
    except ValidationError:
        return TurnState()  # not ours; without it this turn is planned like any other


def _core_calls(message: AIMessage) -> Iterator[ToolCall]:
    calls = [(call["id"], call["name"], json.dumps(call["args"], ensure_ascii=False)) for call in message.tool_calls]
    calls += [(call["id"], call["name"] or "", call["args"] or "") for call in message.invalid_tool_calls]
    for number, (call_id, name, arguments) in enumerate(calls):
        yield ToolCall(id=call_id or f"call_{number}", name=name, arguments=arguments)


def _parts(message: BaseMessage) -> Iterator[ContentPart]:
    """Converts the content blocks, without tool calls and without vendors' own blocks in replies."""
    if isinstance(message, AIMessage) and isinstance(message.content, list):  # LangChain's translators omit plain texts
        content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in message.content]
        message = message.model_copy(update={"content": content})
    provider = message.response_metadata.get(PROVIDER_KEY)
    blocks = [standard_block(block) for block in cast("list[dict[str, Any]]", message.content_blocks)]
    has_text = any(block["type"] == "text" for block in blocks)
    for block in blocks:
        match block:
            case {"type": "text" | "text-plain" as kind, "text": str(text)}:
                if text:
                    yield TextPart(text=text) if kind == "text" else _text_document(text, block)
            case {"type": "reasoning"}:
                yield from _reasoning(block.get("reasoning"), block.get("extras", {}).get("signature"), provider)
            case {"type": "non_standard", "value": {"type": "thinking", "thinking": str(text), **other}}:
                yield from _reasoning(text, cast("str | None", other.get("signature")), provider)
            case {"type": "non_standard", "value": {"type": "redacted_thinking", "data": str(data)}}:
                yield ReasoningPart(text="", signature=REDACTED_PREFIX + data)
            case {"type": "non_standard", "value": {"type": "custom_tool_call_output", "output": str(text)}}:
                yield TextPart(text=text)
            case {"type": "image", **image} if "base64" in image or "url" in image:
                yield _image(image)
            case {"type": "file" | "text-plain", "base64": str(data)}:
                yield from _file(data, block)
            case {"refusal": str(text)} | {"value": {"refusal": str(text)}} if not has_text:
                yield TextPart(text=text)
            case _:
                yield from _note(message, block)


def _note(message: BaseMessage, block: Mapping[str, Any]) -> Iterator[TextPart]:
    """Says in a reply which attachment is left out; users can replace those in other messages."""
    if not isinstance(message, AIMessage):
        raise ConfigError(_unsupported_block(message, block))
    if (kind := block_type(block)) in MEDIA_TYPES:
        yield TextPart(text=LEFT_OUT.format(kind=kind))


def _reasoning(text: str | None, signature: str | None, provider: str | None) -> Iterator[ReasoningPart]:
    if signature:
        signature = SIGNATURE_PREFIXES.get(provider or "", "") + signature
    if text or signature:
        yield ReasoningPart(text=text or "", signature=signature)


def _image(block: Mapping[str, Any]) -> ImagePart:
    kind = block.get("mime_type") or "image/png"
    detail = block.get("extras", {}).get("detail") or block.get("detail")
    detail = detail if detail in get_args(ImageDetail) else None
    return ImagePart(media_type=kind, url=block.get("url"), data=block.get("base64"), detail=detail)


def _file(data: str, block: Mapping[str, Any]) -> Iterator[ContentPart]:
    """Converts a document in base64: plain text to a text part, which every model reads, and others to a file."""
    details = _document_details(block)
    if str(block.get("mime_type")).startswith("text/"):
        with suppress(ValueError):
            yield _text_document(b64decode(data, validate=True).decode(), block)
            return
    if context := details.pop("context", None):
        yield TextPart(text=f"[Context of the document {details.get('name', '')}: {context}]\n")
    fields = {"media_type": block.get("mime_type"), **details}
    yield FilePart(data=data, **{name: value for name, value in fields.items() if value})


def _text_document(text: str, block: Mapping[str, Any]) -> TextPart:
    details = _document_details(block)
    if not details:
        return TextPart(text=text)
    return labelled_text("document", text, details.get("name"), Context=details.get("context"))


def _document_details(block: Mapping[str, Any]) -> dict[str, str]:
    """Returns the `name` and the `context` of a document, where the block has them; packages differ in the places."""
    extras = block.get("extras", {})
    candidates = (block, extras, extras.get("metadata"), block.get("metadata"))
    places = [place for place in candidates if isinstance(place, dict)]
    keys = {"name": ("filename", "title", "name"), "context": ("context",)}
    details = {
        detail: next((place[key] for place in places for key in names if isinstance(place.get(key), str)), "")
        for detail, names in keys.items()
    }
    return {detail: value for detail, value in details.items() if value}


def _unsupported_block(message: BaseMessage, block: Mapping[str, Any]) -> str:
    kind = block_type(block)
    replacement = (
        "its content as base64, since workers of other vendors can't fetch it"
        if kind in FETCHED_TYPES
        else "text, images or files"
    )
    return (
        f"a {message.type} message has a block of type {kind!r} that can't be sent to every worker; write {replacement}"
    )


# --------------------------------------------------------------------------------- core to LangChain


def lc_messages(messages: Iterable[Message]) -> list[BaseMessage]:
    """Converts a conversation for a LangChain model; the text of a failed tool says so, as not all send its status."""
    return [_with_marked_text(message) if message.is_error else lc_message(message) for message in messages]


def _with_marked_text(message: Message) -> BaseMessage:
    return lc_message(message.with_error_as_text()).model_copy(update={"status": "error"})


def lc_message(message: Message) -> BaseMessage:
    """Converts one message to LangChain's."""
    content: Any = _content(message)
    match message.role:
        case "system":
            role = {OPENAI_ROLE_KEY: "developer"} if message.is_developer else {}
            return SystemMessage(content, name=message.name, additional_kwargs=role)
        case "user":
            return HumanMessage(content, name=message.name)
        case "tool":
            status = "error" if message.is_error else "success"
            return ToolMessage(content, tool_call_id=message.tool_call_id or "", name=message.name, status=status)
        case "assistant":
            return AIMessage(content, name=message.name, response_metadata=_signer(message), **_lc_calls(message))


def lc_reply(message: Message, *, is_refusal: bool = False, **fields: Any) -> AIMessage:
    """Converts the Conductor's answer for the caller; `fields` are additional ones of the `AIMessage`.

    After the text of a refusal comes LangChain's block for refusals, which middleware and parsers recognise.
    """
    reasoning = tuple(part for part in message.content if isinstance(part, ReasoningPart))
    signed = tuple(part for part in reasoning if part.signature)
    state = TurnState(continuation=message.continuation, reasoning=signed)
    extra: dict[str, Any] = {}
    if state != TurnState():
        extra[TURN_STATE_KEY] = state.model_dump(mode="json", exclude_none=True)
    if message.reasoning:
        extra[REASONING_KEY] = message.reasoning
    content: Any = message.text
    if is_refusal:
        content = [{"type": "text", "text": content}, {"type": "refusal", "refusal": content}]
    return AIMessage(content, name=message.name, additional_kwargs=extra, **_lc_calls(message), **fields)


def lc_usage(usage: Usage) -> UsageMetadata:
    """Converts token counts; LangChain has no fields for calls and cost."""
    metadata = UsageMetadata(
        input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, total_tokens=usage.total_tokens
    )
    details = InputTokenDetails()
    if usage.cached_tokens:
        details["cache_read"] = usage.cached_tokens
    if usage.cache_write_tokens:
        details["cache_creation"] = usage.cache_write_tokens
    if details:
        metadata["input_token_details"] = details
    if usage.reasoning_tokens:
        metadata["output_token_details"] = OutputTokenDetails(reasoning=usage.reasoning_tokens)
    return metadata


def _lc_calls(message: Message) -> dict[str, Any]:
    """Builds the fields of an `AIMessage` for calls with valid and with invalid arguments."""
    calls = [_lc_call(call) for call in message.tool_calls]
    kinds = {"tool_calls": "tool_call", "invalid_tool_calls": "invalid_tool_call"}
    return {field: [call for call in calls if call["type"] == kind] for field, kind in kinds.items()}


def _lc_call(call: ToolCall) -> LCToolCall | InvalidToolCall:
    problem = "the arguments are not a JSON object"
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        arguments, problem = None, str(error)
    if isinstance(arguments, dict):
        return LCToolCall(type="tool_call", id=call.id, name=call.name, args=arguments)
    return InvalidToolCall(type="invalid_tool_call", id=call.id, name=call.name, args=call.arguments, error=problem)


def _content(message: Message) -> Any:
    """Returns plain text if there are only text parts, because not every model accepts content blocks."""
    parts = [part for part in message.content if not isinstance(part, ReasoningPart) or _is_block(part)]
    return message.text if all(isinstance(part, TextPart) for part in parts) else [_block(part) for part in parts]


def _is_block(part: ReasoningPart) -> bool:
    return bool(part.signature) and not str(part.signature).startswith(VENDOR_STATE_PREFIX)


def _block(part: ContentPart) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart(detail=str(detail)):  # LangChain's own block for images loses the detail
            url = part.url or f"data:{part.media_type};base64,{part.data}"
            return {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        case ImagePart(url=str(url)):
            return {"type": "image", "url": url}
        case ImagePart():
            return {"type": "image", "base64": part.data, "mime_type": part.media_type}
        case FilePart():
            return {"type": "file", "base64": part.data, "mime_type": part.media_type, "filename": part.name}
        case ReasoningPart():
            return _reasoning_block(part)


def _reasoning_block(part: ReasoningPart) -> dict[str, Any]:
    """Returns the form that Anthropic's and Google's packages send; OpenAI's drops it."""
    signature = part.signature or ""
    if signature.startswith(REDACTED_PREFIX):
        return {"type": "redacted_thinking", "data": signature.removeprefix(REDACTED_PREFIX)}
    signature = signature.removeprefix(THINKING_PREFIX).removeprefix(THOUGHT_PREFIX)
    return {"type": "thinking", "thinking": part.text, "signature": signature}


def _signer(message: Message) -> dict[str, str]:
    """Returns the metadata that names the vendor of signed reasoning; vendors' packages recognise their own by it."""
    signatures = [part.signature or "" for part in message.content if isinstance(part, ReasoningPart)]
    for provider, prefix in SIGNATURE_PREFIXES.items():
        if any(signature.startswith(prefix) for signature in signatures):
            return {PROVIDER_KEY: provider}
    return {}
