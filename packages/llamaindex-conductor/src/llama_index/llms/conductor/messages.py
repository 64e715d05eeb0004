"""LlamaIndex's messages and tools as the values of `rl_conductor`, and back: pure translation.

Names that begin with `core_` make the core's values. Histories come from users, stores and models: what they carry
for us is validated before it is believed, and forgotten when it is malformed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

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
from pydantic import ValidationError

from rl_conductor.errors import ConfigError
from rl_conductor.models.base import arguments_of
from rl_conductor.types import (
    ContentPart,
    Continuation,
    FilePart,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    Tool,
    ToolCall,
)

CONTINUATION = "continuation"
"""The key of an assistant message's `additional_kwargs` under which the core's `Continuation` travels."""

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


# ----------------------------------------------------------------------------------- into the core


def core_messages(messages: Iterable[ChatMessage]) -> tuple[Message, ...]:
    """A conversation.

    Raises:
        ConfigError: a message holds what no worker can take, such as audio.
    """
    return tuple(core_message(message) for message in messages)


def core_message(message: ChatMessage) -> Message:
    """One message.

    Raises:
        ConfigError: it holds what no worker can take, such as audio.
    """
    role = ROLES[message.role]
    call_id = message.additional_kwargs.get("tool_call_id")
    return Message(
        role=role,
        content=tuple(_parts(message.blocks)),
        tool_calls=tuple(_call(block) for block in message.blocks if isinstance(block, ToolCallBlock)),
        tool_call_id=None if role != "tool" or call_id is None else str(call_id),
        continuation=_continuation(message) if role == "assistant" else None,
    )


def core_tool(tool: Mapping[str, Any]) -> Tool:
    """A tool, from the form that `BaseTool.metadata.to_openai_tool()` gives.

    Raises:
        ConfigError: it is not in that form.
    """
    function = tool.get("function")
    if not isinstance(function, Mapping) or "name" not in function:
        raise ConfigError(f"{tool!r} is no tool; write what tool.metadata.to_openai_tool() gives")
    told = {name: function[name] for name in ("name", "description", "parameters") if function.get(name)}
    return Tool.model_validate(told)


def _parts(blocks: Iterable[ContentBlock]) -> Iterator[ContentPart]:
    for block in blocks:
        match block:
            case TextBlock():
                yield TextPart(text=block.text)
            case ImageBlock():
                yield _image(block)
            case DocumentBlock():
                yield _file(block)
            case ThinkingBlock(content=str(thought)):
                yield ReasoningPart(text=thought, signature=_signature(block))
            case CitableBlock():
                yield from _parts(block.content)
            case CitationBlock():
                yield from _parts([block.cited_content])
            case ToolCallBlock() | CachePoint() | ThinkingBlock():
                pass  # calls stand beside the content; the others are hints that change no answer
            case _:
                raise ConfigError(f"no worker takes a {type(block).__name__}; write text, an image or a document")


def _image(block: ImageBlock) -> ImagePart:
    kind = block.image_mimetype or "image/png"
    address = str(block.url) if block.url and not block.image else None
    if address and not address.startswith("data:"):
        return ImagePart(media_type=kind, url=address)
    return ImagePart(media_type=kind, data=block.resolve_image(as_base64=True).read().decode())


def _file(block: DocumentBlock) -> FilePart:
    if block.url and not (block.data or block.path):
        raise ConfigError(f"the document at {block.url!r} is not fetched; give its content, DocumentBlock(data=...)")
    _, _, data = block.inline_url().partition(";base64,")
    return FilePart(
        media_type=block.document_mimetype or "application/pdf", name=block.title or "document.pdf", data=data
    )


def _signature(block: ThinkingBlock) -> str | None:
    signature = block.additional_information.get("signature")
    return signature if isinstance(signature, str) else None


def _call(block: ToolCallBlock) -> ToolCall:
    arguments = block.tool_kwargs if isinstance(block.tool_kwargs, str) else json.dumps(block.tool_kwargs)
    return ToolCall(id=block.tool_call_id or block.tool_name, name=block.tool_name, arguments=arguments)


def _continuation(message: ChatMessage) -> Continuation | None:
    """What an earlier reply of ours left in the message; it was out of our hands, so it may be anything."""
    try:
        return Continuation.model_validate(message.additional_kwargs.get(CONTINUATION))
    except ValidationError:
        return None


# --------------------------------------------------------------------------------- out of the core


def chat_message(message: Message) -> ChatMessage:
    """A message as LlamaIndex has it."""
    kwargs = {} if message.tool_call_id is None else {"tool_call_id": message.tool_call_id}
    blocks = [_block(part) for part in message.content if not isinstance(part, TextPart)]
    if message.text:  # as one block: LlamaIndex puts line breaks between several
        blocks.append(TextBlock(text=message.text))
    blocks += [_call_block(call) for call in message.tool_calls]
    return ChatMessage(role=MessageRole(message.role), blocks=blocks, additional_kwargs=kwargs)


def carrying(message: ChatMessage, reply: Message) -> ChatMessage:
    """`message`, our own `reply`, with what LlamaIndex and our next turn look for in it, as plain JSON.

    Kept apart from `chat_message`: integrations of other models may send whatever stands there to their vendor.
    """
    kwargs = dict(message.additional_kwargs)
    if reply.tool_calls:  # where the streaming of structured objects looks for them
        kwargs["tool_calls"] = [call.model_dump() for call in reply.tool_calls]
    if reply.continuation is not None:
        kwargs[CONTINUATION] = reply.continuation.model_dump()
    return message.model_copy(update={"additional_kwargs": kwargs})


def with_one_call(message: ChatMessage) -> ChatMessage:
    """`message` with the first of its tool calls only."""
    calls = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    kwargs = dict(message.additional_kwargs)
    if "tool_calls" in kwargs:
        kwargs["tool_calls"] = kwargs["tool_calls"][:1]
    blocks = [block for block in message.blocks if block not in calls[1:]]
    return message.model_copy(update={"blocks": blocks, "additional_kwargs": kwargs})


def _block(part: ReasoningPart | ImagePart | FilePart) -> ContentBlock:
    match part:
        case ReasoningPart():
            known = {} if part.signature is None else {"signature": part.signature}
            return ThinkingBlock(content=part.text, additional_information=known)
        case ImagePart():
            data = None if part.data is None else part.data.encode()
            return ImageBlock(image=data, url=part.url, image_mimetype=part.media_type)
        case FilePart():
            return DocumentBlock(data=part.data.encode(), title=part.name, document_mimetype=part.media_type)


def _call_block(call: ToolCall) -> ToolCallBlock:
    """Arguments as an object, which every integration reads, unless they are none."""
    arguments = arguments_of(call)
    kwargs = call.arguments if "invalid_json" in arguments else arguments
    return ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=kwargs)
