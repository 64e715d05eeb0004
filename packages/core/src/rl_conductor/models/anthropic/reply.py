"""Translates replies of Anthropic's Messages API, without I/O.

Does not depend on the vendor's library. Replies are untrusted and therefore validated. Unknown fields, and
unknown kinds of blocks, deltas and events, are ignored.
"""

from __future__ import annotations

import json
from io import StringIO
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from rl_conductor.errors import BadResponseError
from rl_conductor.models.anthropic.wire import REDACTED_PREFIX, THINKING_PREFIX
from rl_conductor.models.prices import priced
from rl_conductor.models.replies.size import ReplySize
from rl_conductor.models.vendor_errors import describe_violation
from rl_conductor.types import Completion, ContentPart, Delta, Message, Price, ReasoningPart, TextPart, ToolCall, Usage
from rl_conductor.types.completions import parse_finish_reason

T = TypeVar("T", bound=BaseModel)


class _Piece(BaseModel):
    """The fields of content blocks, and of their additions in a stream."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None


class _Block(_Piece):
    data: str | None = None
    """Redacted reasoning."""
    id: str | None = None
    name: str | None = None
    input: Any = None


class _Addition(_Piece):
    partial_json: str | None = None


class _OutputDetails(BaseModel):
    thinking_tokens: int | None = Field(None, ge=0)


class _Usage(BaseModel):
    """Cumulative counts; cache reads and writes are not among the other input tokens."""

    input_tokens: int | None = Field(None, ge=0)
    cache_read_input_tokens: int | None = Field(None, ge=0)
    cache_creation_input_tokens: int | None = Field(None, ge=0)
    output_tokens: int | None = Field(None, ge=0)
    output_tokens_details: _OutputDetails | None = None

    def to_usage(self) -> Usage:
        cache_reads, cache_writes = self.cache_read_input_tokens or 0, self.cache_creation_input_tokens or 0
        return Usage(
            input_tokens=(self.input_tokens or 0) + cache_reads + cache_writes,
            cached_tokens=cache_reads,
            cache_write_tokens=cache_writes,
            output_tokens=self.output_tokens or 0,
            reasoning_tokens=(self.output_tokens_details and self.output_tokens_details.thinking_tokens) or 0,
        )


class _End(BaseModel):
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Message(_End):
    type: Literal["message"]
    model: str
    content: list[_Block]
    usage: _Usage | None = None


class _MessageStart(BaseModel):
    message: _Message


class _BlockStart(BaseModel):
    content_block: _Block


class _BlockDelta(BaseModel):
    index: int
    delta: _Addition


class _MessageDelta(BaseModel):
    delta: _End
    usage: _Usage | None = None


class _OpenBlock:
    """A content block, with the additions of its stream so far."""

    def __init__(self, block: _Block) -> None:
        self.block = block
        self.text, self.arguments = StringIO(), StringIO()
        self.text.write(block.text or block.thinking or "")
        self.signature = block.signature or ""
        self.input = json.dumps(block.input or {}, ensure_ascii=False)
        """The arguments of a tool call that has no additions."""
        block.text = block.thinking = block.input = None

    def add(self, addition: _Addition) -> Delta:
        match addition.type, self.block.type:
            case "text_delta", "text":
                self.text.write(addition.text or "")
                return Delta(text=addition.text or "")
            case "thinking_delta", "thinking":
                self.text.write(addition.thinking or "")
                return Delta(reasoning=addition.thinking or "")
            case "signature_delta", "thinking":
                self.signature = addition.signature or ""
            case "input_json_delta", "tool_use":
                self.arguments.write(addition.partial_json or "")
        return Delta()

    def part(self) -> ContentPart | None:
        match self.block.type:
            case "text":
                return TextPart(text=self.text.getvalue())
            case "thinking":
                return ReasoningPart(text=self.text.getvalue(), signature=THINKING_PREFIX + self.signature)
            case "redacted_thinking":
                return ReasoningPart(text="", signature=REDACTED_PREFIX + (self.block.data or ""))
        return None


class Reply:
    """Accumulates a reply from one message or from the events of a stream."""

    def __init__(self, model: str) -> None:
        """`model` is the requested name."""
        self.has_ended = False
        self._requested = model
        self._message: _Message | None = None
        self._blocks: list[_OpenBlock] = []
        self._size = ReplySize(model)

    def add_message(self, message: object) -> Delta:
        """Adds a complete message and returns its text. Raises `BadResponseError`."""
        delta = self._begin(self._validated(_Message, message))
        self.has_ended = True
        return delta

    def add(self, event: object) -> Delta:
        """Adds an event of a stream, or a complete message, and returns its delta. Raises `BadResponseError`."""
        kind = event.get("type") if isinstance(event, dict) else None
        if kind == "message":  # which a gateway may send instead of a stream
            return self.add_message(event)
        if kind == "content_block_delta":
            piece = self._validated(_BlockDelta, event)
            added = piece.delta
            self._size.add(added.text, added.thinking, added.signature, added.partial_json)
            return self._block(piece.index).add(added)
        if kind == "message_start":
            return self._begin(self._validated(_MessageStart, event).message)
        if kind == "content_block_start":
            return self._open(self._validated(_BlockStart, event).content_block)
        if kind == "message_delta":
            self._end(self._validated(_MessageDelta, event))
        return Delta()

    def completion(self, price: Price | None) -> Completion:
        """Builds the completion. Raises `BadResponseError` if the reply is incomplete."""
        message = self._message
        if not self.has_ended or message is None or message.stop_reason is None:
            raise BadResponseError(
                f"{self._requested}: the reply broke off before it was complete", model=self._requested
            )
        parts = (block.part() for block in self._blocks)
        calls = (block for block in self._blocks if block.block.type == "tool_use")
        return Completion(
            message=Message(
                role="assistant",
                content=tuple(part for part in parts if part),
                tool_calls=tuple(map(self._tool_call, calls)),
            ),
            usage=priced(message.usage.to_usage() if message.usage else Usage(), price),
            finish_reason=parse_finish_reason(message.stop_reason, tool_calls=message.stop_reason == "tool_use"),
            stop_sequence=message.stop_sequence,
            model=message.model,
        )

    def _begin(self, message: _Message) -> Delta:
        if self._message is not None:
            raise self._invalid("a second message follows the first")
        self._message = message
        deltas = [self._open(block) for block in message.content]
        message.content = []
        return Delta(
            text="".join(delta.text for delta in deltas), reasoning="".join(delta.reasoning for delta in deltas)
        )

    def _open(self, block: _Block) -> Delta:
        """Begins a block, and returns the text that it already has."""
        self._size.add(block.text, block.thinking, block.signature, block.data, block.id, block.name, parts=1)
        text, reasoning = block.text or "", block.thinking or ""
        opened = _OpenBlock(block)
        self._size.add(opened.input)
        self._blocks.append(opened)
        return Delta(text=text if block.type == "text" else "", reasoning=reasoning if block.type == "thinking" else "")

    def _end(self, event: _MessageDelta) -> None:
        if self._message is None:
            raise self._invalid("its end comes before its start")
        counts = {name: count for name, count in event.usage or () if count is not None}
        usage = (self._message.usage or _Usage()).model_copy(update=counts)
        self._message = self._message.model_copy(update={**dict(event.delta), "usage": usage})
        self.has_ended = self._message.stop_reason is not None

    def _block(self, index: int) -> _OpenBlock:
        if not 0 <= index < len(self._blocks):
            raise self._invalid(f"there is no content block {index}")
        return self._blocks[index]

    def _tool_call(self, open_block: _OpenBlock) -> ToolCall:
        block = open_block.block
        if not block.name:
            raise self._invalid("a tool call names no tool")
        arguments = open_block.arguments.getvalue() or open_block.input
        return ToolCall(id=block.id or "", name=block.name, arguments=arguments)

    def _validated(self, kind: type[T], value: object) -> T:
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            raise self._invalid(describe_violation(error)) from None

    def _invalid(self, reason: str) -> BadResponseError:
        return BadResponseError(f"{self._requested}: not a message of the protocol: {reason}", model=self._requested)
