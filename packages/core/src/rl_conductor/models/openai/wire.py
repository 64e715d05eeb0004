"""Translates requests to the Chat Completions API of OpenAI and compatible servers and replies back, without I/O.

Does not depend on a vendor's library. Replies are untrusted and therefore validated; a complete reply is parsed as a
stream of one frame.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from io import StringIO
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from rl_conductor.errors import BadResponseError
from rl_conductor.models.attachments import move_attachments
from rl_conductor.models.openai.dialects import Dialect
from rl_conductor.models.openai.errors import refusal
from rl_conductor.models.openai.strict_schema import close_schema
from rl_conductor.models.prices import priced
from rl_conductor.models.replies.size import ReplySize
from rl_conductor.models.vendor_errors import describe_violation
from rl_conductor.text.surrogates import SurrogateJoiner, join_surrogates
from rl_conductor.types import (
    Completion,
    ContentPart,
    Delta,
    FilePart,
    Grammar,
    ImagePart,
    JsonFormat,
    Message,
    Price,
    ReasoningPart,
    Request,
    TextPart,
    Tool,
    ToolCall,
    Usage,
)
from rl_conductor.types.completions import parse_finish_reason

TIERS_WITH_OWN_PRICE = ("priority", "flex")
"""OpenAI's service tiers whose calls do not cost the model's usual price, so that they count as unpriced."""

ACCEPTING = ("user",)
"""The roles of messages with images and files. OpenAI's older models refuse them in tool results, and newer ones answer
as if there were none there."""

BROKEN_OFF = ("", "error", "abort", "insufficient_system_resource")
"""The finish reasons, or the lack of one, of replies that are incomplete; the last is DeepSeek's."""

# ----------------------------------------------------------------------------------------- requests


def options_of(request: Request, dialect: Dialect) -> dict[str, Any]:
    """Builds the fields of the request body; options that are not set are left out."""
    sampling, form = request.sampling, request.response_format
    options = {
        "messages": [_message(message) for message in move_attachments(request.messages, accepting=ACCEPTING)],
        "tools": [_tool(tool) for tool in request.tools],
        "tool_choice": _choice(request),
        "parallel_tool_calls": False if request.tools and not request.parallel_tool_calls else None,
        "response_format": response_format_of(form, strict_mode=dialect.strict_mode)
        if isinstance(form, JsonFormat)
        else None,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        dialect.max_tokens: sampling.max_tokens,
        "seed": sampling.seed if dialect.seed == "seed" else None,
        "stop": list(sampling.stop),
        "reasoning_effort": sampling.effort,
    }
    return {name: value for name, value in options.items() if value not in (None, [])}


def extra_fields(request: Request, dialect: Dialect) -> dict[str, Any]:
    """Builds the fields that are not part of OpenAI's own API."""
    seed = request.sampling.seed
    fields: dict[str, Any] = {} if seed is None or dialect.seed == "seed" else {dialect.seed: seed}
    if dialect.grammar is not None and isinstance(request.response_format, Grammar):
        fields |= dialect.grammar(request.response_format.gbnf)
    return fields


def _message(message: Message) -> dict[str, Any]:
    message = message.with_error_as_text()
    fields = {
        "role": message.role,
        "content": _content(message) or None,
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls": [_call(call) for call in message.tool_calls] or None,
    }
    empty = {"content": None if message.tool_calls else ""}
    return empty | {name: value for name, value in fields.items() if value is not None}


def _content(message: Message) -> str | list[dict[str, Any]]:
    """Returns plain text if possible, because not every server accepts a list of parts."""
    if all(isinstance(part, TextPart | ReasoningPart) for part in message.content):
        return message.text
    return [_part(part) for part in message.content if not isinstance(part, ReasoningPart)]


def _part(part: TextPart | ImagePart | FilePart) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            detail = {} if part.detail is None else {"detail": part.detail}
            url = part.url or _data_url(part.media_type, part.data)
            return {"type": "image_url", "image_url": {"url": url, **detail}}
        case FilePart():
            return {"type": "file", "file": {"filename": part.name, "file_data": _data_url(part.media_type, part.data)}}


def _data_url(media_type: str, data: str | None) -> str:
    return f"data:{media_type};base64,{data or ''}"


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(request: Request) -> str | dict[str, Any] | None:
    if not request.tools:
        return None
    if request.tool_choice in ("auto", "none", "required"):
        return request.tool_choice
    return {"type": "function", "function": {"name": request.tool_choice}}


def response_format_of(response_format: JsonFormat, *, strict_mode: bool = True) -> dict[str, Any]:
    """Converts a response format to OpenAI's form, which other vendors and frameworks read, too.

    In `strict_mode`, unless the caller says whether it is strict, a schema that can be closed is sent closed and as
    strict, so that the vendor enforces it.
    """
    schema, strict = response_format.json_schema, response_format.is_strict
    if schema is None:
        return {"type": "json_object"}
    is_open = strict_mode and response_format.strict is None and not strict
    if is_open and (closed := close_schema(schema)) is not None:
        schema, strict = closed, True
    return {"type": "json_schema", "json_schema": {"name": response_format.name, "schema": schema, "strict": strict}}


# ------------------------------------------------------------------------------------------ replies


class _Function(BaseModel):
    name: str | None = None
    arguments: str | None = None


class _Fragment(BaseModel):
    """A tool call, or a streamed piece of one."""

    index: int | None = None
    """Index of the tool call that it continues; absent in complete replies."""
    id: str | None = None
    function: _Function = _Function()


class _Block(BaseModel):
    """A part of content that comes in parts, as Mistral's does after reasoning; types without text are left out."""

    text: str = ""
    thinking: list[_Block] = []


class _Message(BaseModel):
    content: str | list[_Block] | None = None
    refusal: str | None = None
    """Refusal message, sent instead of content."""
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Other servers' name for it; some send both, one of them empty."""
    tool_calls: list[_Fragment] | None = None

    def split(self) -> tuple[str, str]:
        """Returns the text and the reasoning."""
        if isinstance(self.content, list):
            thinking = [part.text for block in self.content for part in block.thinking]
            return "".join([block.text for block in self.content]), "".join(thinking)
        return self.content or self.refusal or "", self.reasoning_content or self.reasoning or ""


class _Choice(BaseModel):
    message: _Message = Field(validation_alias=AliasChoices("message", "delta"))
    finish_reason: str | None = None
    stop_reason: Any = None
    """The stop sequence, or the id of the stop token, at which the model stopped; an extension of vLLM."""


Count = Annotated[int | None, Field(ge=0)]


class _InputDetails(BaseModel):
    cached_tokens: Count = None


class _OutputDetails(BaseModel):
    reasoning_tokens: Count = None


class TokenCounts(BaseModel):
    """The `usage` of a reply."""

    prompt_tokens: Count = None
    completion_tokens: Count = None
    total_tokens: Count = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None

    def to_usage(self) -> Usage:
        """Converts the counts; calls and cost stay 0."""
        cached = self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None
        details = self.completion_tokens_details
        reasoning_tokens = (details.reasoning_tokens if details else None) or 0
        return Usage(
            input_tokens=self.prompt_tokens or 0,
            cached_tokens=cached or 0,
            output_tokens=self._output_tokens(reasoning_tokens),
            reasoning_tokens=reasoning_tokens,
        )

    def _output_tokens(self, reasoning_tokens: int) -> int:
        """Returns all output tokens; xAI, for example, leaves reasoning out of the completion tokens."""
        completion_tokens = self.completion_tokens or 0
        if self.prompt_tokens is not None and self.total_tokens is not None:
            return max(completion_tokens, self.total_tokens - self.prompt_tokens)
        return completion_tokens + (reasoning_tokens if reasoning_tokens > completion_tokens else 0)


def token_counts(usage: Usage) -> dict[str, int]:
    """Converts `usage` to OpenAI's names, which other frameworks read, too."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }


class _Frame(BaseModel):
    """A complete reply, or a chunk of a stream."""

    model: str | None = None
    service_tier: str | None = None
    choices: list[_Choice] | None = None
    usage: TokenCounts | None = None
    error: Any = None  # which a gateway sends instead of choices after a status of 200


@dataclass
class _Call:
    index: int | None
    id: str
    name: str = ""
    arguments: StringIO = field(default_factory=StringIO)

    def is_followed_by(self, fragment: _Fragment) -> bool:
        """Returns whether a fragment with the same index begins another call.

        Some servers give every call the index 0, and some of these the same id or none.
        """
        if fragment.index is None or (fragment.id and fragment.id != self.id):
            return True
        begins_object = bool(fragment.function.name) and (fragment.function.arguments or "").lstrip().startswith("{")
        return begins_object and _is_json(self.arguments.getvalue())


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class Reply:
    """Accumulates a reply from its frames."""

    def __init__(self, model: str) -> None:
        """`model` is the requested name."""
        self.has_ended = False
        self._requested = self._model = model
        self._text, self._reasoning = StringIO(), StringIO()
        self._text_joiner, self._reasoning_joiner = SurrogateJoiner(), SurrogateJoiner()
        self._size = ReplySize(model)
        self._calls: list[_Call] = []
        self._finish = ""
        self._refused = False
        self._stop_sequence: str | None = None
        self._usage = Usage()
        self._tier: str | None = None

    def add(self, frame: object) -> Delta:
        """Adds a frame and returns its delta. Raises `ModelError`."""
        try:
            parsed = _Frame.model_validate(frame)
        except ValidationError as error:
            raise self._invalid_reply(error) from None
        if parsed.error:
            raise refusal(parsed.error, model=self._requested)
        if parsed.choices is None:
            raise BadResponseError(
                f"{self._requested}: not a chat completion: it has no choices", model=self._requested
            )
        self._model = parsed.model or self._model
        self._usage = parsed.usage.to_usage() if parsed.usage else self._usage
        self._tier = parsed.service_tier or self._tier
        return self._add(parsed.choices[0]) if parsed.choices else Delta()

    def completion(self, price: Price | None) -> Completion:
        """Builds the completion. Raises `BadResponseError` if the reply is incomplete."""
        if self._finish in BROKEN_OFF:
            raise BadResponseError(
                f"{self._requested}: the reply broke off before it was complete", model=self._requested
            )
        reasoning, text = self._reasoning.getvalue(), self._text.getvalue()
        content: list[ContentPart] = [ReasoningPart(text=reasoning)] if reasoning else []
        content += [TextPart(text=text)] if text else []
        calls = tuple(self._tool_call(call) for call in self._calls)
        finish = parse_finish_reason(self._finish, tool_calls=bool(calls))
        return Completion(
            message=Message(role="assistant", content=tuple(content), tool_calls=calls),
            usage=priced(self._usage, None if self._tier in TIERS_WITH_OWN_PRICE else price),
            finish_reason="content_filter" if self._refused and finish != "length" else finish,
            is_refusal=self._refused,
            stop_sequence=self._stop_sequence,
            model=self._model,
        )

    def _add(self, choice: _Choice) -> Delta:
        message = choice.message
        text, reasoning = message.split()
        self._size.add(text, reasoning)
        is_last = bool(choice.finish_reason)
        text = self._text_joiner.add(text, is_last=is_last)
        reasoning = self._reasoning_joiner.add(reasoning, is_last=is_last)
        self._text.write(text)
        self._reasoning.write(reasoning)
        for fragment in message.tool_calls or ():
            self._add_call(fragment)
        self._refused = self._refused or bool(message.refusal)
        self._finish = choice.finish_reason or self._finish
        self.has_ended = bool(self._finish)
        if isinstance(choice.stop_reason, str):
            self._stop_sequence = choice.stop_reason
        return Delta(text="" if message.refusal else text, reasoning=reasoning)  # a refusal comes in one piece

    def _add_call(self, fragment: _Fragment) -> None:
        last = next((call for call in reversed(self._calls) if call.index == fragment.index), None)
        if last is None or last.is_followed_by(fragment):
            self._size.add(fragment.id, parts=1)
            last = _Call(fragment.index, fragment.id or "")
            self._calls.append(last)
        self._size.add(fragment.function.name, fragment.function.arguments)
        last.name = last.name or fragment.function.name or ""
        last.arguments.write(fragment.function.arguments or "")

    def _tool_call(self, call: _Call) -> ToolCall:
        if not call.name:
            raise BadResponseError(f"{self._requested}: a tool call names no tool", model=self._requested)
        return ToolCall(id=call.id, name=call.name, arguments=join_surrogates(call.arguments.getvalue()) or "{}")

    def _invalid_reply(self, error: ValidationError) -> BadResponseError:
        return BadResponseError(
            f"{self._requested}: not a chat completion: {describe_violation(error)}", model=self._requested
        )
