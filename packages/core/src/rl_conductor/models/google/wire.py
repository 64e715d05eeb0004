"""Google's `generateContent` protocol: our requests in its words, its replies in ours. Pure translation.

Calls that come without an id get one that is unique in the conversation. Thought signatures travel in
`ReasoningPart`s, marked as Google's and with what they sign, so that the next turn sends them back in place and
another vendor's are never sent there. A whole reply is read as a stream of one chunk, so there is one reader.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from itertools import groupby

from google.genai import types as wire

from rl_conductor.errors import BadRequestError, BadResponseError
from rl_conductor.models.base import DEFAULT_TIMEOUT, arguments_of, priced
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
"""The rest (`MALFORMED_FUNCTION_CALL`, `OTHER` ...) leaves no reply that could be used."""

BUDGETS = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
"""Thinking tokens by effort for the 2.5 models, which know no levels; the numbers are the vendor's own mapping."""

THOUGHT = "google:thought:"
TEXT = "google:text:"
CALL = "google:call:"
"""Marks of what a signature signs. The last is followed by the signature, a colon and the call's id."""

UNSIGNED = b"skip_thought_signature_validator"
"""What the vendor wants as the signature of a call that none of its models made."""

# ----------------------------------------------------------------------------------------- requests


def config_of(request: Request, *, model: str) -> wire.GenerateContentConfig:
    """All but the conversation. Raises `BadRequestError` for what the API has no word for."""
    sampling = request.sampling
    form = request.response_format
    return wire.GenerateContentConfig(
        system_instruction="\n\n".join(said.text for said in request.messages if said.role == "system") or None,
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
        # Both would make calls of their own accord, which nobody reserved and nobody counts.
        automatic_function_calling=wire.AutomaticFunctionCallingConfig(disable=True),
        automatic_continuation=False,
    )


def contents_of(request: Request, *, model: str) -> list[wire.Content]:
    """The conversation: turns of `user`, to whom tool results belong, and `model`."""
    names = {call.id: call.name for message in request.messages for call in message.tool_calls}
    said = [message for message in request.messages if message.role != "system"]
    contents = []
    for assistant, messages in groupby(said, key=lambda message: message.role == "assistant"):
        parts = [part for message in messages for part in _parts(message, names, model)]
        if parts:
            contents.append(wire.Content(role="model" if assistant else "user", parts=parts))
    return contents


def _thinking(request: Request, model: str) -> wire.ThinkingConfig | None:
    effort = request.sampling.effort
    if effort is None:
        return None
    if "gemini-2.5" in model:
        return wire.ThinkingConfig(include_thoughts=True, thinking_budget=BUDGETS[effort])
    return wire.ThinkingConfig(include_thoughts=True, thinking_level=wire.ThinkingLevel(effort.upper()))


def _tools(request: Request) -> list[wire.Tool] | None:
    declared = [
        wire.FunctionDeclaration(
            name=tool.name, description=tool.description or None, parameters_json_schema=tool.parameters
        )
        for tool in request.tools
    ]
    return [wire.Tool(function_declarations=declared)] if declared else None


def _tool_config(request: Request, model: str) -> wire.ToolConfig | None:
    if not request.tools:
        return None
    if not request.parallel_tool_calls and request.tool_choice != "none":
        raise BadRequestError(f"{model} can't be held to one tool call: leave parallel_tool_calls on", model=model)
    mode = {"auto": "AUTO", "none": "NONE"}.get(request.tool_choice, "ANY")
    named = request.tool_choice not in ("auto", "none", "required")
    calling = wire.FunctionCallingConfig(
        mode=wire.FunctionCallingConfigMode(mode), allowed_function_names=[request.tool_choice] if named else None
    )
    return wire.ToolConfig(function_calling_config=calling)


def _parts(message: Message, names: dict[str, str], model: str) -> Iterator[wire.Part]:
    if message.role == "tool":
        yield wire.Part(function_response=_function_response(message, names, model))
        return
    for part in message.content:
        yield from _thought(part) if isinstance(part, ReasoningPart) else _media(part, model)
    yield from _calls(message)


def _thought(part: ReasoningPart) -> Iterator[wire.Part]:
    signature = part.signature or ""
    if signature.startswith(THOUGHT):
        yield wire.Part(text=part.text, thought=True, thought_signature=_signed(signature, THOUGHT))
    elif signature.startswith(TEXT):
        yield wire.Part(text="", thought_signature=_signed(signature, TEXT))


def _calls(message: Message) -> Iterator[wire.Part]:
    """The calls with their signatures. Only the first needs one, and a conversation may come from other models."""
    signatures = [part.signature for part in message.content if isinstance(part, ReasoningPart) and part.signature]
    signed = {s.partition(CALL)[2].partition(":")[2]: _signed(s, CALL) for s in signatures if s.startswith(CALL)}
    for index, call in enumerate(message.tool_calls):
        function = wire.FunctionCall(id=call.id, name=call.name, args=arguments_of(call))
        unsigned = None if index or signed else UNSIGNED
        yield wire.Part(function_call=function, thought_signature=signed.get(call.id, unsigned))


def _signed(signature: str, mark: str) -> bytes:
    return b64decode(signature.removeprefix(mark).partition(":")[0])


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
        raise BadRequestError(f"a tool message answers {call_id!r}, which no message before it calls", model=model)
    media = [_response_part(part, model) for part in message.content if isinstance(part, ImagePart | FilePart)]
    return wire.FunctionResponse(id=call_id, name=name, response={"output": message.text}, parts=media or None)


def _response_part(part: ImagePart | FilePart, model: str) -> wire.FunctionResponsePart:
    if isinstance(part, ImagePart) and part.url:
        return wire.FunctionResponsePart.from_uri(file_uri=part.url, mime_type=part.media_type)
    return wire.FunctionResponsePart.from_bytes(data=_decoded(part, model), mime_type=part.media_type)


# ------------------------------------------------------------------------------------------ replies


class Reply:
    """A reply as it grows, chunk by chunk."""

    def __init__(self, request: Request, *, model: str) -> None:
        """`model` is the name asked for; what the service says of itself comes before it."""
        self._asked = model
        self._model = model.partition(":")[2]
        self._earlier_calls = sum(len(message.tool_calls) for message in request.messages)
        self._content: list[ContentPart] = []
        self._calls: list[ToolCall] = []
        self._finish: str | None = None
        self._usage = Usage()

    def add(self, chunk: wire.GenerateContentResponse) -> Delta:
        """What `chunk` adds."""
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
        """The whole. Raises `BadResponseError` when it is incomplete or of no use."""
        if self._finish is None:
            raise BadResponseError(f"{self._asked}: the reply broke off before it was complete", model=self._asked)
        if self._finish not in FINISH:
            raise BadResponseError(f"{self._asked}: the reply ended with {self._finish!r}", model=self._asked)
        finish = FINISH[self._finish]
        return Completion(
            message=Message(role="assistant", content=tuple(self._content), tool_calls=tuple(self._calls)),
            usage=priced(self._usage, price),
            finish_reason="tool_calls" if self._calls and finish == "stop" else finish,
            model=self._model,
        )

    def _add(self, part: wire.Part) -> None:
        signature = b64encode(part.thought_signature).decode() if part.thought_signature else ""
        if part.function_call:
            call = self._tool_call(part.function_call)
            self._calls.append(call)
            if signature:
                self._content.append(ReasoningPart(text="", signature=f"{CALL}{signature}:{call.id}"))
        elif part.thought:
            self._think(part.text or "", signature)
        else:
            self._say(part.text or "")
            if signature:
                self._content.append(ReasoningPart(text="", signature=TEXT + signature))

    def _tool_call(self, call: wire.FunctionCall) -> ToolCall:
        if not call.name:
            raise BadResponseError(f"{self._asked}: a function call names no function", model=self._asked)
        made_up = f"call_{self._earlier_calls + len(self._calls)}"
        return ToolCall(id=call.id or made_up, name=call.name, arguments=json.dumps(call.args or {}))

    def _say(self, text: str) -> None:
        last = self._content[-1] if self._content else None
        if isinstance(last, TextPart):
            self._content[-1] = TextPart(text=last.text + text)
        elif text:
            self._content.append(TextPart(text=text))

    def _think(self, text: str, signature: str) -> None:
        last = self._content[-1] if self._content else None
        marked = THOUGHT + signature if signature else None
        if isinstance(last, ReasoningPart) and last.signature is None:
            self._content[-1] = ReasoningPart(text=last.text + text, signature=marked)
        elif text or signature:
            self._content.append(ReasoningPart(text=text, signature=marked))


def _usage(usage: wire.GenerateContentResponseUsageMetadata) -> Usage:
    thought = usage.thoughts_token_count or 0
    return Usage(
        input_tokens=(usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0),
        cached_tokens=usage.cached_content_token_count or 0,
        output_tokens=(usage.candidates_token_count or 0) + thought,
        reasoning_tokens=thought,
    )
