"""Translates requests to Google's `generateContent` API and its replies back, without I/O.

Tool calls without an id get one that is unique in the conversation. Thought signatures are stored in `ReasoningPart`s
with a prefix that names Google and the kind of part they sign, so that the next request sends them back in place and
those of other vendors are left out. A complete reply is parsed as a stream of one chunk.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from itertools import groupby

from google.genai import types as wire

from rl_conductor.errors import BadRequestError, BadResponseError
from rl_conductor.models.base import DEFAULT_TIMEOUT, arguments_of, priced
from rl_conductor.models.reply_size import ReplySize
from rl_conductor.types import (
    Completion,
    ContentPart,
    Delta,
    FilePart,
    FinishReason,
    ImagePart,
    JsonFormat,
    Message,
    Price,
    ReasoningPart,
    Request,
    TextPart,
    ToolCall,
    Usage,
)

FINISH: dict[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "LANGUAGE": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "ESCALATION": "content_filter",
    "MODEL_ARMOR": "content_filter",
}
"""Finish reasons of usable replies; any other (`MALFORMED_FUNCTION_CALL`, `OTHER` ...) is an error."""

THINKING_BUDGETS = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
"""Thinking tokens by effort for the 2.5 models, which have no levels; the vendor's own mapping."""

THOUGHT_PREFIX = "google:thought:"
TEXT_PREFIX = "google:text:"
CALL_PREFIX = "google:call:"
"""Prefixes by the kind of part that a signature signs. The last is followed by signature, colon and call id."""

PLACEHOLDER_SIGNATURE = b"skip_thought_signature_validator"
"""The vendor's placeholder signature for a tool call that another model made."""

# ----------------------------------------------------------------------------------------- requests


def config_of(request: Request, *, model: str) -> wire.GenerateContentConfig:
    """Builds everything except the conversation. Raises `BadRequestError` for features that the API lacks."""
    sampling = request.sampling
    form = request.response_format
    system = "\n\n".join(message.text for message in request.messages if message.role == "system")
    return wire.GenerateContentConfig(
        system_instruction=system or None,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_output_tokens=sampling.max_tokens,
        seed=sampling.seed,
        stop_sequences=list(sampling.stop) or None,
        thinking_config=_thinking(request, model),
        tools=_tools(request),
        tool_config=_tool_config(request, model),
        response_mime_type="application/json" if isinstance(form, JsonFormat) else None,
        response_json_schema=form.json_schema if isinstance(form, JsonFormat) else None,
        http_options=wire.HttpOptions(timeout=round(1000 * (request.timeout or DEFAULT_TIMEOUT)) or 1),
        # Both would make calls that no budget accounts for.
        automatic_function_calling=wire.AutomaticFunctionCallingConfig(disable=True),
        automatic_continuation=False,
    )


def contents_of(request: Request, *, model: str) -> list[wire.Content]:
    """Merges messages into turns of `user` (with tool results) and `model`."""
    names = {call.id: call.name for message in request.messages for call in message.tool_calls}
    conversation = [message for message in request.messages if message.role != "system"]
    contents = []
    for assistant, messages in groupby(conversation, key=lambda message: message.role == "assistant"):
        parts = [part for message in messages for part in _parts(message, names, model)]
        if parts:
            contents.append(wire.Content(role="model" if assistant else "user", parts=parts))
    return contents


def _thinking(request: Request, model: str) -> wire.ThinkingConfig | None:
    effort = request.sampling.effort
    if effort is None:
        return None
    if "gemini-2.5" in model:
        return wire.ThinkingConfig(include_thoughts=True, thinking_budget=THINKING_BUDGETS[effort])
    return wire.ThinkingConfig(include_thoughts=True, thinking_level=wire.ThinkingLevel(effort.upper()))


def _tools(request: Request) -> list[wire.Tool] | None:
    declarations = [
        wire.FunctionDeclaration(
            name=tool.name, description=tool.description or None, parameters_json_schema=tool.parameters
        )
        for tool in request.tools
    ]
    return [wire.Tool(function_declarations=declarations)] if declarations else None


def _tool_config(request: Request, model: str) -> wire.ToolConfig | None:
    if not request.tools:
        return None
    if not request.parallel_tool_calls and request.tool_choice != "none":
        raise BadRequestError(f"{model} can't be limited to one tool call: leave parallel_tool_calls on", model=model)
    mode = {"auto": "AUTO", "none": "NONE"}.get(request.tool_choice, "ANY")
    is_tool_name = request.tool_choice not in ("auto", "none", "required")
    calling_config = wire.FunctionCallingConfig(
        mode=wire.FunctionCallingConfigMode(mode),
        allowed_function_names=[request.tool_choice] if is_tool_name else None,
    )
    return wire.ToolConfig(function_calling_config=calling_config)


def _parts(message: Message, names: dict[str, str], model: str) -> Iterator[wire.Part]:
    if message.role == "tool":
        yield wire.Part(function_response=_function_response(message, names, model))
        return
    for part in message.content:
        yield from _reasoning_parts(part) if isinstance(part, ReasoningPart) else _media(part, model)
    yield from _calls(message)


def _reasoning_parts(part: ReasoningPart) -> Iterator[wire.Part]:
    signature = part.signature or ""
    if signature.startswith(THOUGHT_PREFIX):
        yield wire.Part(text=part.text, thought=True, thought_signature=_decode_signature(signature, THOUGHT_PREFIX))
    elif signature.startswith(TEXT_PREFIX):
        yield wire.Part(text="", thought_signature=_decode_signature(signature, TEXT_PREFIX))


def _calls(message: Message) -> Iterator[wire.Part]:
    """Yields the tool calls with their signatures. Only the first call needs one; other models' calls have none."""
    signatures = [part.signature for part in message.content if isinstance(part, ReasoningPart) and part.signature]
    signatures_by_call = {
        signature.partition(CALL_PREFIX)[2].partition(":")[2]: _decode_signature(signature, CALL_PREFIX)
        for signature in signatures
        if signature.startswith(CALL_PREFIX)
    }
    for index, call in enumerate(message.tool_calls):
        function = wire.FunctionCall(id=call.id, name=call.name, args=arguments_of(call))
        unsigned = None if index or signatures_by_call else PLACEHOLDER_SIGNATURE
        yield wire.Part(function_call=function, thought_signature=signatures_by_call.get(call.id, unsigned))


def _decode_signature(signature: str, prefix: str) -> bytes:
    return b64decode(signature.removeprefix(prefix).partition(":")[0])


def _media(part: TextPart | ImagePart | FilePart, model: str) -> Iterator[wire.Part]:
    match part:
        case TextPart(text=text):
            if text:
                yield wire.Part(text=text)
        case ImagePart(url=str(url)):
            yield wire.Part(file_data=wire.FileData(file_uri=url, mime_type=part.media_type))
        case _:
            data = _decoded(part, model)
            yield wire.Part(inline_data=wire.Blob(data=data, mime_type=part.media_type))


def _decoded(part: ImagePart | FilePart, model: str) -> bytes:
    try:
        return b64decode(part.data or "", validate=True)
    except ValueError:
        raise BadRequestError(f"the data of a {part.media_type!r} is not base64", model=model) from None


def _function_response(message: Message, names: dict[str, str], model: str) -> wire.FunctionResponse:
    call_id = message.tool_call_id or ""
    name = names.get(call_id) or message.name
    if not name:
        raise BadRequestError(f"a tool message answers {call_id!r}, which no earlier message calls", model=model)
    media = [_response_part(part, model) for part in message.content if isinstance(part, ImagePart | FilePart)]
    return wire.FunctionResponse(id=call_id, name=name, response={"output": message.text}, parts=media or None)


def _response_part(part: ImagePart | FilePart, model: str) -> wire.FunctionResponsePart:
    if isinstance(part, ImagePart) and part.url:
        return wire.FunctionResponsePart.from_uri(file_uri=part.url, mime_type=part.media_type)
    return wire.FunctionResponsePart.from_bytes(data=_decoded(part, model), mime_type=part.media_type)


# ------------------------------------------------------------------------------------------ replies


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

    def __init__(self, request: Request, *, model: str) -> None:
        """`model` is the requested name; a model name in the reply takes precedence."""
        self._requested = model
        self._model = model.partition(":")[2]
        self._earlier_calls = sum(len(message.tool_calls) for message in request.messages)
        self._parts: list[_OpenPart] = []
        self._size = ReplySize(model)
        self._calls: list[ToolCall] = []
        self._finish: str | None = None
        self._usage = Usage()

    def add(self, chunk: wire.GenerateContentResponse) -> Delta:
        """Adds a chunk and returns its delta."""
        self._model = chunk.model_version or self._model
        self._usage = _usage(chunk.usage_metadata) if chunk.usage_metadata else self._usage
        if chunk.prompt_feedback and chunk.prompt_feedback.block_reason:
            self._finish = "SAFETY"
        text, reasoning = "", ""
        for candidate in (chunk.candidates or ())[:1]:
            self._finish = candidate.finish_reason.value if candidate.finish_reason else self._finish
            for part in (candidate.content and candidate.content.parts) or ():
                self._add(part)
                text += "" if part.thought else part.text or ""
                reasoning += (part.text or "") if part.thought else ""
        return Delta(text=text, reasoning=reasoning)

    def completion(self, price: Price | None) -> Completion:
        """Builds the completion. Raises `BadResponseError` if the reply is incomplete or unusable."""
        if self._finish is None:
            raise BadResponseError(
                f"{self._requested}: the reply broke off before it was complete", model=self._requested
            )
        if self._finish not in FINISH:
            raise BadResponseError(f"{self._requested}: the reply ended with {self._finish!r}", model=self._requested)
        finish = FINISH[self._finish]
        return Completion(
            message=Message(
                role="assistant", content=tuple(part.close() for part in self._parts), tool_calls=tuple(self._calls)
            ),
            usage=priced(self._usage, price),
            finish_reason="tool_calls" if self._calls and finish == "stop" else finish,
            model=self._model,
        )

    def _add(self, part: wire.Part) -> None:
        self._size.add(part.text)
        signature = b64encode(part.thought_signature).decode() if part.thought_signature else ""
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

    def _tool_call(self, call: wire.FunctionCall) -> ToolCall:
        if not call.name:
            raise BadResponseError(f"{self._requested}: a function call names no function", model=self._requested)
        generated_id = f"call_{self._earlier_calls + len(self._calls)}"
        return ToolCall(id=call.id or generated_id, name=call.name, arguments=json.dumps(call.args or {}))

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


def _usage(usage: wire.GenerateContentResponseUsageMetadata) -> Usage:
    reasoning = usage.thoughts_token_count or 0
    return Usage(
        input_tokens=(usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0),
        cached_tokens=usage.cached_content_token_count or 0,
        output_tokens=(usage.candidates_token_count or 0) + reasoning,
        reasoning_tokens=reasoning,
    )
