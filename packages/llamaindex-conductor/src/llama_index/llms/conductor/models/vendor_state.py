"""Keeps Google's thought signatures, which Gemini needs back in the reply to which they belong, after its tool calls.

In the core they are the signature of the reply's reasoning, which callers send back unchanged. They may be forged then:
nothing in them replaces text, tool calls or attachments, which the core checks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from pydantic import ConfigDict, ValidationError

from llama_index.llms.conductor.messages import chat_message
from rl_conductor import Message
from rl_conductor.types import ContentPart, ReasoningPart, Value

VENDOR_STATE_PREFIX = "llamaindex:"
"""Prefix of the signatures that hold the state of a LlamaIndex LLM, for that LLM alone."""
SIGNATURES = "thought_signatures"
"""Google's key in the `additional_kwargs` of a message: the signature of each block, if it has one."""


class VendorState(Value):
    """An LLM's own parts of its reply, as plain JSON."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    owner: str
    """The LLM, as other models refuse these signatures."""
    signatures: tuple[bytes | None, ...]


def with_vendor_state(reply: Message, message: ChatMessage, *, owner: str) -> Message:
    """Adds the signatures in `message` to `reply`, the same reply in the core's form, if it has tool calls."""
    stored = message.additional_kwargs.get(SIGNATURES)
    if not reply.tool_calls or not isinstance(stored, Sequence):
        return reply
    by_kind = defaultdict[type, list[bytes | None]](list)
    for block, signature in zip_longest(message.blocks, stored[: len(message.blocks)]):
        by_kind[type(block)].append(signature if isinstance(signature, bytes) else None)
    kinds = [type(block) for block in chat_message(reply).blocks]
    ordered = tuple(by_kind[kind].pop(0) if by_kind[kind] else None for kind in kinds)
    if not any(ordered):
        return reply
    state = VendorState(owner=owner, signatures=ordered)
    part = ReasoningPart(text="", signature=VENDOR_STATE_PREFIX + state.model_dump_json())
    return reply.model_copy(update={"content": (part, *reply.content)})


def messages_for(owner: str, messages: Sequence[Message]) -> list[ChatMessage]:
    """Converts a conversation for the LLM of this name, with the signatures in its own replies."""
    return [_restored(message, owner) for message in messages]


def _restored(message: Message, owner: str) -> ChatMessage:
    others = tuple(part for part in message.content if not _is_state(part))
    converted = chat_message(message.model_copy(update={"content": others}))
    for part in message.content:
        if isinstance(part, ReasoningPart) and _is_state(part):
            try:
                state = VendorState.model_validate_json((part.signature or "").removeprefix(VENDOR_STATE_PREFIX))
            except ValidationError:
                continue
            if state.owner == owner and message.role == "assistant":
                converted.role = MessageRole.MODEL  # Google's LLM sends the signatures of this role only
                converted.additional_kwargs[SIGNATURES] = list(state.signatures)
    return converted


def _is_state(part: ContentPart) -> bool:
    return isinstance(part, ReasoningPart) and (part.signature or "").startswith(VENDOR_STATE_PREFIX)
