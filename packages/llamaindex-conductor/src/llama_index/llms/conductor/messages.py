"""Converts messages and tools between LlamaIndex and the core. Pure.

Functions whose names begin with `core_` return the core's values. Chat histories come from users, stores and models, so
a continuation in them is untrusted: it is validated, and ignored if it is malformed.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from pydantic import BaseModel, ValidationError

from rl_conductor.errors import ConfigError
from rl_conductor.integration import arguments_of, labelled_text
from rl_conductor.types import (
    ContentPart,
    Continuation,
    FilePart,
    ImageDetail,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    Tool,
    ToolCall,
)

CONTINUATION = "continuation"
"""The key of the core's `Continuation` in the `additional_kwargs` of an assistant message."""

PDF_START = b"%PDF-"
DEFAULT_TITLE = "input_document"
"""The title that LlamaIndex gives to documents without one."""

ROLES: dict[MessageRole, Literal["system", "user", "assistant", "tool"]] = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.TOOL: "tool",
    MessageRole.FUNCTION: "tool",
}


# --------------------------------------------------------------------------------------- to the core


def core_messages(messages: Iterable[ChatMessage]) -> tuple[Message, ...]:
    """Converts a conversation to messages of the core.

    Raises:
        ConfigError: a message contains a block that no worker accepts, such as audio.
    """
    return tuple(core_message(message) for message in messages)


def core_message(message: ChatMessage) -> Message:
    """Converts one message to one of the core.

    Raises:
        ConfigError: it contains a block that no worker accepts, such as audio.
    """
    role = ROLES[message.role]
    call_id = message.additional_kwargs.get("tool_call_id")
    return Message(
        role=role,
        content=tuple(_parts(message.blocks)),
        tool_calls=_calls(message),
        tool_call_id=None if role != "tool" or call_id is None else str(call_id),
        continuation=_continuation(message) if role == "assistant" else None,
    )


def core_tool(tool: Mapping[str, Any]) -> Tool:
    """Converts a tool from the form that `BaseTool.metadata.to_openai_tool()` returns.

    Raises:
        ConfigError: it is not in that form.
    """
    function = tool.get("function")
    if not isinstance(function, Mapping) or "name" not in function:
        raise ConfigError(f"invalid tool {tool!r}; pass the return value of tool.metadata.to_openai_tool()")
    fields = {name: function[name] for name in ("name", "description", "parameters") if function.get(name)}
    return Tool.model_validate(fields)


def _parts(blocks: Iterable[ContentBlock]) -> Iterator[ContentPart]:
    for block in blocks:
        match block:
            case TextBlock():
                yield TextPart(text=block.text)
            case ImageBlock():
                yield _image(block)
            case DocumentBlock():
                yield _document(block)
            case ThinkingBlock():
                yield from core_reasoning(block)
            case CitableBlock():
                yield from _citable(block)
            case CitationBlock():
                yield from _parts([block.cited_content])
            case ToolCallBlock() | CachePoint():
                pass  # calls are a field of their own; the others do not affect the answer
            case _:
                raise ConfigError(f"unsupported content block {type(block).__name__}; use text, images or documents")


def _image(block: ImageBlock) -> ImagePart:
    media_type = block.image_mimetype or "image/png"
    detail: Any = block.detail if block.detail in get_args(ImageDetail) else None
    url = str(block.url) if block.url and not block.image else None
    if url and not url.startswith("data:"):
        return ImagePart(media_type=media_type, url=url, detail=detail)
    data = block.resolve_image(as_base64=True).read().decode()
    return ImagePart(media_type=media_type, data=data, detail=detail)


def _document(block: DocumentBlock) -> ContentPart:
    """Converts a document: plain text to a text part, which every model reads, and others to a file."""
    if block.url and not (block.data or block.path):
        raise ConfigError(
            f"documents are not fetched from URLs ({block.url}); pass the content: DocumentBlock(data=...)"
        )
    content = block.resolve_document().read()
    media_type, name = block.document_mimetype, _document_name(block)
    if media_type is None and content.startswith(PDF_START):  # LlamaIndex recognises PDFs, but no text or base64
        media_type = "application/pdf"
    if media_type is None or media_type.startswith("text/"):
        with suppress(UnicodeDecodeError):
            return labelled_text("document", content.decode(), name)
    return FilePart(
        media_type=media_type or "application/octet-stream", name=name or "document", data=b64encode(content).decode()
    )


def _document_name(block: DocumentBlock) -> str | None:
    is_named = block.title not in (None, DEFAULT_TITLE)
    return block.title if is_named or block.path is None else Path(block.path).name


def _citable(block: CitableBlock) -> Iterator[ContentPart]:
    parts = list(_parts(block.content))
    text = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    yield labelled_text("document", text, block.title, Source=block.source)
    yield from (part for part in parts if not isinstance(part, TextPart))


def core_reasoning(block: ThinkingBlock) -> Iterator[ReasoningPart]:
    """Converts reasoning with its signature, without which Anthropic does not accept it back."""
    signature = block.additional_information.get("signature")
    signature = signature if isinstance(signature, str) and signature else None
    if block.content or signature:
        yield ReasoningPart(text=block.content or "", signature=signature)


def _calls(message: ChatMessage) -> tuple[ToolCall, ...]:
    calls = tuple(_call(block) for block in message.blocks if isinstance(block, ToolCallBlock))
    if calls or ROLES[message.role] != "assistant":
        return calls
    stored = message.additional_kwargs.get("tool_calls")
    return tuple(_stored_calls(stored)) if isinstance(stored, list | tuple) else ()


def _stored_calls(stored: Iterable[object]) -> Iterator[ToolCall]:
    """Reads OpenAI's tool calls, as objects or JSON: older versions of LlamaIndex stored them in place of blocks."""
    for call in stored:
        fields = call.model_dump() if isinstance(call, BaseModel) else call
        match fields:
            case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}}:
                yield ToolCall(id=call_id, name=name, arguments=arguments)


def _call(block: ToolCallBlock) -> ToolCall:
    arguments = (
        block.tool_kwargs if isinstance(block.tool_kwargs, str) else json.dumps(block.tool_kwargs, ensure_ascii=False)
    )
    return ToolCall(id=block.tool_call_id or block.tool_name, name=block.tool_name, arguments=arguments)


def _continuation(message: ChatMessage) -> Continuation | None:
    try:
        return Continuation.model_validate(message.additional_kwargs.get(CONTINUATION))
    except ValidationError:
        return None


# ------------------------------------------------------------------------------------- from the core


def chat_message(message: Message) -> ChatMessage:
    """Converts a message of the core; the text of a failed tool says so, as LlamaIndex has no field for it."""
    message = message.with_error_as_text()
    kwargs = {} if message.tool_call_id is None else {"tool_call_id": message.tool_call_id}
    parts = message.with_joined_texts().content  # LlamaIndex joins any by line breaks, also a reply's
    blocks = [*(_block(part) for part in parts), *(_call_block(call) for call in message.tool_calls)]
    return ChatMessage(role=MessageRole(message.role), blocks=blocks, additional_kwargs=kwargs)


def reply_message(reply: Message) -> ChatMessage:
    """Converts an answer of the Conductor, with its tool calls and continuation in `additional_kwargs` as plain JSON.

    `chat_message` omits them, because integrations of other models may send `additional_kwargs` to their vendor.
    """
    message = chat_message(reply)
    kwargs = dict(message.additional_kwargs)
    if reply.tool_calls:  # LlamaIndex's streaming of structured output reads them here
        kwargs["tool_calls"] = [call.model_dump() for call in reply.tool_calls]
    if reply.continuation is not None:
        kwargs[CONTINUATION] = reply.continuation.model_dump()
    return message.model_copy(update={"additional_kwargs": kwargs})


def keep_first_call(message: ChatMessage) -> ChatMessage:
    """Removes all tool calls but the first."""
    calls = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    kwargs = dict(message.additional_kwargs)
    if "tool_calls" in kwargs:
        kwargs["tool_calls"] = kwargs["tool_calls"][:1]
    blocks = [block for block in message.blocks if block not in calls[1:]]
    return message.model_copy(update={"blocks": blocks, "additional_kwargs": kwargs})


def _block(part: ContentPart) -> ContentBlock:
    match part:
        case TextPart():
            return TextBlock(text=part.text)
        case ReasoningPart():
            information = {} if part.signature is None else {"signature": part.signature}
            return ThinkingBlock(content=part.text, additional_information=information)
        case ImagePart():
            data = None if part.data is None else part.data.encode()
            return ImageBlock(image=data, url=part.url, image_mimetype=part.media_type, detail=part.detail)
        case FilePart():
            return DocumentBlock(data=part.data.encode(), title=part.name, document_mimetype=part.media_type)


def _call_block(call: ToolCall) -> ToolCallBlock:
    arguments = arguments_of(call)  # every integration accepts an object, but not every one a string
    kwargs = call.arguments if "invalid_json" in arguments else arguments
    return ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=kwargs)
