"""Keeps the parts of a reply that only its own model understands, and that it needs back after its tool calls.

Such parts are OpenAI's reasoning items, or signatures in `additional_kwargs`. In the core they are the signature of the
reply's reasoning, which callers send back unchanged. They may be forged then: nothing in them replaces text, tool calls
or attachments, which the core checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from pydantic import Field, JsonValue, ValidationError, field_validator

from langchain_conductor.messages import TURN_STATE_KEY, VENDOR_STATE_PREFIX, lc_messages
from rl_conductor.types import Message, ReasoningPart, Value

SIGNED_BLOCKS = ("thinking", "redacted_thinking")
"""Types of blocks with reasoning that the core keeps, and that vendors want first."""
CORE_BLOCKS = frozenset(
    {
        *SIGNED_BLOCKS,
        *("text", "text-plain", "output_text", "refusal", "non_standard"),
        *("image", "image_url", "input_image", "file", "input_file", "document", "audio", "input_audio", "video"),
        *("tool_call", "tool_call_chunk", "invalid_tool_call", "tool_use", "function_call", "input_json_delta"),
        "tool_result",
    }
)
"""Types of blocks that are no vendor's own."""
CORE_FIELDS = ("tool_calls", "function_call", "refusal", TURN_STATE_KEY)
"""Keys of `additional_kwargs` with values that are fields of the core's message."""
FORM_KEYS = ("model_provider", "output_version")
"""Keys of `response_metadata` by which vendors' packages recognise the form of the blocks."""


class VendorState(Value):
    """A model's own parts of its reply, as plain JSON."""

    owner: str
    """Identifies the model and its settings, as other models refuse these parts."""
    blocks: tuple[dict[str, JsonValue], ...] = ()
    additional_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    response_metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("blocks")
    @classmethod
    def _select_blocks(cls, blocks: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        return tuple(block for block in blocks if block.get("type") not in CORE_BLOCKS and not _is_signed(block))

    @field_validator("additional_kwargs")
    @classmethod
    def _select_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if value and name not in CORE_FIELDS}

    @field_validator("response_metadata")
    @classmethod
    def _select_metadata(cls, metadata: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name in FORM_KEYS if (value := metadata.get(name))}


def with_vendor_state(reply: Message, message: AIMessage, *, owner: Callable[[], str]) -> Message:
    """Adds the state in `message` to `reply`, the same reply in the core's form, if it has tool calls.

    State that JSON can't represent is left out. `owner` returns an id of the model.
    """
    if not reply.tool_calls:
        return reply
    fields = {
        "blocks": [block for block in message.content if isinstance(block, dict)],
        "additional_kwargs": message.additional_kwargs,
        "response_metadata": {name: message.response_metadata.get(name) for name in FORM_KEYS},
    }
    try:
        state = VendorState.model_validate({"owner": owner(), **fields})
    except ValidationError:
        return reply
    if not (state.blocks or state.additional_kwargs):
        return reply
    readable = [part for part in reply.content if isinstance(part, ReasoningPart) and not part.signature]
    signed = [part for part in reply.content if isinstance(part, ReasoningPart) and part.signature]
    others = [part for part in reply.content if not isinstance(part, ReasoningPart)]
    signature = VENDOR_STATE_PREFIX + state.model_dump_json(exclude_defaults=True)
    own = ReasoningPart(text="".join(part.text for part in readable), signature=signature)
    return reply.model_copy(update={"content": (*signed, own, *others)})


def messages_for(owner: Callable[[], str], messages: Sequence[Message]) -> list[BaseMessage]:
    """Converts a conversation for the LangChain model with this id, with the state in its own replies."""
    converted = zip(lc_messages(messages), messages, strict=True)
    return [_restored(lc_message, _find_state(message, owner)) for lc_message, message in converted]


def _find_state(message: Message, owner: Callable[[], str]) -> VendorState | None:
    for part in message.content:
        if isinstance(part, ReasoningPart) and (part.signature or "").startswith(VENDOR_STATE_PREFIX):
            try:
                state = VendorState.model_validate_json((part.signature or "").removeprefix(VENDOR_STATE_PREFIX))
            except ValidationError:
                continue
            if state.owner == owner():
                return state
    return None


def _restored(message: BaseMessage, state: VendorState | None) -> BaseMessage:
    if state is None or not isinstance(message, AIMessage):
        return message
    update: dict[str, Any] = {
        "additional_kwargs": {**message.additional_kwargs, **state.additional_kwargs},
        "response_metadata": {**message.response_metadata, **state.response_metadata},
    }
    if state.blocks:
        content: Any = message.content
        blocks = ([{"type": "text", "text": content}] if content else []) if isinstance(content, str) else content
        signed = [block for block in blocks if block["type"] in SIGNED_BLOCKS]
        update["content"] = [*signed, *state.blocks, *(block for block in blocks if block not in signed)]
    return message.model_copy(update=update)


def _is_signed(block: dict[str, Any]) -> bool:
    extras = block.get("extras")
    return block.get("type") == "reasoning" and isinstance(extras, dict) and "signature" in extras
