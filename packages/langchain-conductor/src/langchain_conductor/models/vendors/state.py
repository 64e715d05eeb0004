"""Keeps the parts of a reply that only its own model understands, and that it needs back later.

After tool calls these are OpenAI's reasoning items, or signatures in `additional_kwargs`, and the order and ids of all
blocks; with any later message, Google's signatures of texts. In the core they are the signature of the reply's
reasoning, which callers send back unchanged. They may be forged then: nothing in them replaces text, tool calls or
attachments, which the core checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, Literal, cast

from langchain_core.messages import AIMessage, BaseMessage
from pydantic import Field, JsonValue, ValidationError, field_validator

from langchain_conductor.messages import TURN_STATE_KEY, VENDOR_STATE_PREFIX, lc_messages
from rl_conductor.integration import arguments_of
from rl_conductor.types import Message, ReasoningPart, ToolCall, Value

Block = dict[str, JsonValue]
BlockKind = Literal["signed", "text", "call", "unused", "own"]
"""The kind: signed reasoning, text or a call, of which the core has the content; the vendor's own; or unused."""

ARGUMENTS = {"function_call": "arguments", "tool_use": "input", "tool_call": "args"}
"""The key of the arguments by the type of a call's block: text in OpenAI's blocks, otherwise an object."""
KINDS: dict[str, BlockKind] = {
    **dict.fromkeys(("signed", "redacted_thinking"), "signed"),
    **dict.fromkeys(("text", "output_text"), "text"),
    **dict.fromkeys(ARGUMENTS, "call"),
    **dict.fromkeys(("thinking", "text-plain", "refusal", "non_standard"), "unused"),
    **dict.fromkeys(("image", "image_url", "input_image", "file", "input_file", "document"), "unused"),
    **dict.fromkeys(("audio", "input_audio", "video", "tool_result"), "unused"),
    **dict.fromkeys(("tool_call_chunk", "invalid_tool_call", "input_json_delta"), "unused"),
}
"""The kinds of blocks by type; others are their vendor's own."""
SIGNABLE = ("thinking", "reasoning", "reasoning_content")
"""Types of blocks that are signed reasoning if they have a signature."""
USUAL_ORDER: tuple[BlockKind, ...] = ("signed", "text", "call")
"""The order in which a reply is converted for LangChain."""
PLACE_KEYS = ("type", "id", "call_id", "phase", "extras", "caller", "toolset_name", "namespace")
"""Keys that are kept of a block whose content the core has."""
MESSAGE_ID_PREFIX = "msg_"
"""The prefix of ids of messages of OpenAI's Responses API; an older form of replies has them outside of the blocks."""
CORE_FIELDS = ("tool_calls", "function_call", "refusal", TURN_STATE_KEY)
"""Keys of `additional_kwargs` with values that are fields of the core's message."""
FORM_KEYS = ("model_provider", "output_version")
"""Keys of `response_metadata` by which vendors' packages recognise the form of the blocks."""


class VendorState(Value):
    """A model's own parts of its reply, as plain JSON."""

    owner: str
    """Identifies the model and its settings, as other models refuse these parts."""
    blocks: tuple[Block, ...] | None = None
    """The vendor's own blocks, and the places of the others without their content; `None` if there was only text."""
    message_id: str | None = None
    additional_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    response_metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("blocks")
    @classmethod
    def _select_blocks(cls, blocks: tuple[Block, ...] | None) -> tuple[Block, ...] | None:
        return blocks and tuple(_without_content(block) for block in blocks if _kind(block) != "unused")

    @field_validator("message_id")
    @classmethod
    def _select_id(cls, message_id: str | None) -> str | None:
        return message_id if message_id and message_id.startswith(MESSAGE_ID_PREFIX) else None

    @field_validator("additional_kwargs")
    @classmethod
    def _select_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if value and name not in CORE_FIELDS}

    @field_validator("response_metadata")
    @classmethod
    def _select_metadata(cls, metadata: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name in FORM_KEYS if (value := metadata.get(name))}

    @property
    def is_needed(self) -> bool:
        """Whether the reply can't be restored without it."""
        kinds = [_kind(block) for block in self.blocks or ()]
        is_usual = "own" not in kinds and kinds == sorted(kinds, key=USUAL_ORDER.index)
        return bool(self.additional_kwargs) or not is_usual or any(map(_is_signed_text, self.blocks or ()))


def with_vendor_state(reply: Message, message: AIMessage, *, owner: Callable[[], str]) -> Message:
    """Adds the state in `message` to `reply`, the same reply in the core's form, if it has tool calls or signed text.

    State that JSON can't represent is left out. `owner` returns an id of the model.
    """
    blocks = _blocks(message.content) if isinstance(message.content, list) else None
    if not (reply.tool_calls or any(map(_is_signed_text, blocks or ()))):
        return reply
    fields = {
        "blocks": blocks,
        "message_id": message.id,
        "additional_kwargs": message.additional_kwargs,
        "response_metadata": {name: message.response_metadata.get(name) for name in FORM_KEYS},
    }
    try:
        state = VendorState.model_validate({"owner": owner(), **fields})
    except ValidationError:
        return reply
    if not state.is_needed:
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
    return [_restored(lc_message, message, _find_state(message, owner)) for lc_message, message in converted]


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


def _restored(converted: BaseMessage, message: Message, state: VendorState | None) -> BaseMessage:
    if state is None or not isinstance(converted, AIMessage):
        return converted
    update: dict[str, Any] = {
        "additional_kwargs": {**converted.additional_kwargs, **state.additional_kwargs},
        "response_metadata": {**converted.response_metadata, **state.response_metadata},
    }
    if state.blocks is not None:
        update["content"] = _fill(state.blocks, message, _blocks(converted.content))
    if state.message_id:
        update["id"] = state.message_id
    return converted.model_copy(update=update)


# ------------------------------------------------------------------------------------------- blocks


def _blocks(content: str | list[Any]) -> list[dict[str, Any]]:
    """Returns the content in the form of blocks."""
    entries = [content] if isinstance(content, str) else content
    return [{"type": "text", "text": entry} if isinstance(entry, str) else entry for entry in entries if entry]


def _kind(block: Mapping[str, Any]) -> BlockKind:
    block_type = block.get("type")
    fields = (block, block.get("extras"), block.get("reasoning_content"))
    if block_type in SIGNABLE and any(isinstance(each, Mapping) and each.get("signature") for each in fields):
        return "signed"
    return KINDS.get(str(block_type), "own") if block_type else "unused"


def _is_signed_text(block: Mapping[str, Any]) -> bool:
    extras = block.get("extras")
    return _kind(block) == "text" and isinstance(extras, Mapping) and bool(extras.get("signature"))


def _without_content(block: Block) -> Block:
    """Returns a block without the content that the core's message has, too; a vendor's own block stays as it is."""
    kind, text = _kind(block), block.get("text")
    if kind == "own":
        return block
    if kind == "signed":
        return {"type": "signed"}
    place = {name: block[name] for name in PLACE_KEYS if name in block}
    if isinstance(extras := place.get("extras"), dict):
        place["extras"] = {name: value for name, value in extras.items() if name != "arguments"}
    if kind == "text":
        chars = len(text) if isinstance(text, str) else block.get("chars")
        place["chars"] = max(chars, 0) if isinstance(chars, int) else 0
    return place


def _fill(places: Sequence[Block], message: Message, converted: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Puts the content that the core has into its places; without them, signed reasoning comes first and text last.

    Args:
        places: the vendor's own blocks, and the places between them.
        message: the reply in the core's form.
        converted: the blocks of the same reply in LangChain's form.
    """
    kinds = [_kind(place) for place in places]
    signed = [block for block in converted if _kind(block) == "signed"]
    attachments = [block for block in converted if _kind(block) not in ("signed", "text")]
    is_each_placed = len(signed) == kinds.count("signed")
    reasoning, filled = iter(signed if is_each_placed else ()), [] if is_each_placed else signed
    sizes = [cast("int", place["chars"]) for place, kind in zip(places, kinds, strict=True) if kind == "text"]
    texts = iter(_split(message.text, sizes))
    calls = {call.id: call for call in message.tool_calls}
    for place, kind in zip(places, kinds, strict=True):
        if kind == "own":
            filled.append(dict(place))
        elif kind == "signed":
            filled += islice(reasoning, 1)
        elif kind == "text":
            filled += [_with_text(place, text) for text in islice(texts, 1)]
        elif call := calls.get(str(place.get("call_id") or place.get("id"))):
            filled.append(_with_call(place, call))
    return [*filled, *_blocks([*texts, *attachments])]


def _split(text: str, sizes: Sequence[int]) -> list[str]:
    """Splits the text as its blocks were; a text that has another length by now is one piece."""
    if sum(sizes) != len(text):
        return [text] if text else []
    return [text[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


def _with_text(place: Block, text: str) -> dict[str, Any]:
    return {name: value for name, value in place.items() if name != "chars"} | {"text": text}


def _with_call(place: Block, call: ToolCall) -> dict[str, Any]:
    key = ARGUMENTS[str(place["type"])]
    return {**place, "name": call.name, key: call.arguments if key == "arguments" else arguments_of(call)}
