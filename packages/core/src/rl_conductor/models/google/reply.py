"""Translates replies of Google's `generateContent` API, without I/O.

Replies are untrusted and therefore validated; unknown fields are ignored. A complete reply is parsed as a stream of one
chunk. Tool calls without an id get one that is unique in the conversation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from io import StringIO
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from rl_conductor.errors import BadResponseError
from rl_conductor.models.google.wire import CALL_PREFIX, TEXT_PREFIX, THOUGHT_PREFIX
from rl_conductor.models.prices import priced
from rl_conductor.models.replies.size import ReplySize
from rl_conductor.models.vendor_errors import MAX_ERROR_LENGTH, describe_violation
from rl_conductor.types import (
    Completion,
    ContentPart,
    Delta,
    Message,
    Price,
    ReasoningPart,
    TextPart,
    ToolCall,
    Usage,
)
from rl_conductor.types.completions import parse_finish_reason


class _Object(BaseModel):
    """A JSON object with field names in camel case."""

    model_config = ConfigDict(alias_generator=to_camel)


Count = Annotated[int | None, Field(ge=0)]


class _FunctionCall(_Object):
    id: str | None = None
    name: str | None = None
    args: dict[str, Any] | None = None


class _Part(_Object):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = Field(None, pattern="^[A-Za-z0-9+/_=-]*$")
    """The signature in base64, which contains none of the colons that separate it from a call id."""
    function_call: _FunctionCall | None = None


class _Content(_Object):
    parts: list[_Part] | None = None


class _Candidate(_Object):
    content: _Content | None = None
    finish_reason: str | None = None


class _PromptFeedback(_Object):
    block_reason: str | None = None


class _UsageMetadata(_Object):
    prompt_token_count: Count = None
    tool_use_prompt_token_count: Count = None
    cached_content_token_count: Count = None
    candidates_token_count: Count = None
    thoughts_token_count: Count = None

    def to_usage(self) -> Usage:
        reasoning = self.thoughts_token_count or 0
        return Usage(
            input_tokens=(self.prompt_token_count or 0) + (self.tool_use_prompt_token_count or 0),
            cached_tokens=self.cached_content_token_count or 0,
            output_tokens=(self.candidates_token_count or 0) + reasoning,
            reasoning_tokens=reasoning,
        )


class _Chunk(_Object):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _PromptFeedback | None = None
    usage_metadata: _UsageMetadata | None = None
    model_version: str | None = None


@dataclass
class _OpenPart:
    """A part of the reply that the next chunk may continue."""

    is_reasoning: bool
    signature: str | None = None
    text: StringIO = field(default_factory=StringIO)

    def close(self) -> ContentPart:
        text = self.text.getvalue()
        return ReasoningPart(text=text, signature=self.signature) if self.is_reasoning else TextPart(text=text)


class Reply:
    """Accumulates a reply from its chunks."""

    def __init__(self, model: str, *, earlier_calls: int = 0) -> None:
        """`model` is the requested name; a model name in the reply takes precedence.

        Calls without an id are numbered from `earlier_calls` on, because the signature of a call names its id.
        """
        self.has_ended = False
        self._requested = model
        self._model = model.partition(":")[2]
        self._earlier_calls = earlier_calls
        self._parts: list[_OpenPart] = []
        self._size = ReplySize(model)
        self._calls: list[ToolCall] = []
        self._finish: str | None = None
        self._usage: _UsageMetadata | None = None

    def add(self, chunk: object) -> Delta:
        """Adds a chunk and returns its delta. Raises `BadResponseError`."""
        parsed = self._validated(chunk)
        self._model = parsed.model_version or self._model
        self._usage = parsed.usage_metadata or self._usage
        if parsed.prompt_feedback and parsed.prompt_feedback.block_reason:
            self._finish = "SAFETY"
        text, reasoning = "", ""
        for candidate in (parsed.candidates or ())[:1]:
            self._finish = candidate.finish_reason or self._finish
            for part in (candidate.content and candidate.content.parts) or ():
                self._add(part)
                text += "" if part.thought else part.text or ""
                reasoning += (part.text or "") if part.thought else ""
        self.has_ended = self._finish is not None
        return Delta(text=text, reasoning=reasoning)

    def completion(self, price: Price | None) -> Completion:
        """Builds the completion. Raises `BadResponseError` if the reply is incomplete or unusable."""
        if self._finish is None:
            raise self._error("the reply broke off before it was complete")
        finish = parse_finish_reason(self._finish, tool_calls=bool(self._calls))
        usage = priced(self._usage.to_usage() if self._usage else Usage(), price)
        if self._finish != "STOP" and finish in ("stop", "tool_calls"):  # such as `MALFORMED_FUNCTION_CALL` or `OTHER`
            raise self._error(f"the reply ended with {self._finish!r}", usage)
        return Completion(
            message=Message(
                role="assistant", content=tuple(part.close() for part in self._parts), tool_calls=tuple(self._calls)
            ),
            usage=usage,
            finish_reason=finish,
            model=self._model,
        )

    def _add(self, part: _Part) -> None:
        self._size.add(part.text)
        signature = part.thought_signature or ""
        if part.function_call:
            call = self._tool_call(part.function_call)
            self._calls.append(call)
            self._size.add(call.id, call.name, call.arguments, parts=1)
            if signature:
                self._open(is_reasoning=True, signature=f"{CALL_PREFIX}{signature}:{call.id}")
        elif part.thought:
            self._add_reasoning(part.text or "", signature)
        else:
            self._add_text(part.text or "")
            if signature:
                self._open(is_reasoning=True, signature=TEXT_PREFIX + signature)

    def _tool_call(self, call: _FunctionCall) -> ToolCall:
        if not call.name:
            raise self._error("a function call names no function")
        generated_id = f"call_{self._earlier_calls + len(self._calls)}"
        return ToolCall(
            id=call.id or generated_id, name=call.name, arguments=json.dumps(call.args or {}, ensure_ascii=False)
        )

    def _add_text(self, text: str) -> None:
        last = self._parts[-1] if self._parts else None
        if last and not last.is_reasoning:
            last.text.write(text)
        elif text:
            self._open(is_reasoning=False).text.write(text)

    def _add_reasoning(self, text: str, signature: str) -> None:
        last = self._parts[-1] if self._parts else None
        prefixed = THOUGHT_PREFIX + signature if signature else None
        if last and last.is_reasoning and last.signature is None:
            last.text.write(text)
            last.signature = prefixed
        elif text or signature:
            self._open(is_reasoning=True, signature=prefixed).text.write(text)

    def _open(self, *, is_reasoning: bool, signature: str | None = None) -> _OpenPart:
        self._size.add(signature, parts=1)
        self._parts.append(_OpenPart(is_reasoning, signature))
        return self._parts[-1]

    def _validated(self, chunk: object) -> _Chunk:
        try:
            return _Chunk.model_validate(chunk)
        except ValidationError as error:
            raise self._error(f"not a reply of the protocol: {describe_violation(error)}") from None

    def _error(self, reason: str, usage: Usage | None = None) -> BadResponseError:
        message = f"{self._requested}: {reason}"[:MAX_ERROR_LENGTH]
        return BadResponseError(message, model=self._requested, usage=usage)
