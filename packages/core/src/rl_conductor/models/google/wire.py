"""Translates requests to Google's `generateContent` API, without I/O; `reply` translates its replies.

Thought signatures are stored in `ReasoningPart`s with a prefix that names Google and the kind of part they sign, so
that the next request sends them back in place and those of other vendors are left out. They stay in base64.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from itertools import groupby
from mimetypes import guess_type
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from rl_conductor.errors import BadRequestError
from rl_conductor.models.attachments import move_attachments
from rl_conductor.types import FilePart, ImagePart, JsonFormat, Message, ReasoningPart, Request, TextPart, Tool
from rl_conductor.types.messages import arguments_of

Json: TypeAlias = dict[str, Any]

THINKING_BUDGETS = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
"""Thinking tokens by effort for the 2.5 models, which have no levels; the vendor's own mapping."""

THOUGHT_PREFIX = "google:thought:"
"""Begins the signature of reasoning that Google signed."""
TEXT_PREFIX = "google:text:"
"""Begins the signature of text."""
CALL_PREFIX = "google:call:"
"""Begins the signature of a tool call; the vendor's signature, a colon and the id of the call follow."""

ACCEPTING = ("user", "tool", "assistant")
"""The roles of messages with images and files."""

PLACEHOLDER_SIGNATURE = b64encode(b"skip_thought_signature_validator").decode()
"""The vendor's placeholder signature for a tool call that another model made."""


def body_of(request: Request, *, model: str) -> Json:
    """Builds the body of a request. Raises `BadRequestError` for features that the API lacks."""
    body: Json = {"contents": _contents(request, model)}
    system = "\n\n".join(message.text for message in request.messages if message.role == "system")
    if system:
        body["systemInstruction"] = {"role": "user", "parts": [{"text": system}]}
    if request.tools:
        body["tools"] = [{"functionDeclarations": [_declaration(tool) for tool in request.tools]}]
        body["toolConfig"] = {"functionCallingConfig": _calling_config(request)}
    if config := _generation_config(request, model):
        body["generationConfig"] = config
    return body


def _generation_config(request: Request, model: str) -> Json:
    sampling, form = request.sampling, request.response_format
    config = {
        "temperature": sampling.temperature,
        "topP": sampling.top_p,
        "maxOutputTokens": sampling.max_tokens,
        "seed": sampling.seed,
        "stopSequences": list(sampling.stop) or None,
        "thinkingConfig": _thinking(request, model),
        "responseMimeType": "application/json" if isinstance(form, JsonFormat) else None,
        "responseJsonSchema": form.json_schema if isinstance(form, JsonFormat) else None,
    }
    return {name: value for name, value in config.items() if value is not None}


def _thinking(request: Request, model: str) -> Json | None:
    effort = request.sampling.effort
    if effort is None:
        return None
    if "gemini-2.5" in model:
        return {"includeThoughts": True, "thinkingBudget": THINKING_BUDGETS[effort]}
    return {"includeThoughts": True, "thinkingLevel": effort.upper()}


def _declaration(tool: Tool) -> Json:
    description = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **description, "parametersJsonSchema": tool.parameters}


def _calling_config(request: Request) -> Json:
    choice = request.tool_choice
    if choice in ("auto", "none"):
        return {"mode": choice.upper()}
    return {"mode": "ANY"} if choice == "required" else {"mode": "ANY", "allowedFunctionNames": [choice]}


# ----------------------------------------------------------------------------------------- messages


def _contents(request: Request, model: str) -> list[Json]:
    """Merges messages into turns of `user` (with tool results) and `model`."""
    names = {call.id: call.name for message in request.messages for call in message.tool_calls}
    messages = move_attachments(request.messages, accepting=ACCEPTING)
    conversation = [message for message in messages if message.role != "system"]
    contents: list[Json] = []
    for assistant, messages in groupby(conversation, key=lambda message: message.role == "assistant"):
        parts = [part for message in messages for part in _parts(message, names, model)]
        if parts:
            contents.append({"role": "model" if assistant else "user", "parts": parts})
    return contents


def _parts(message: Message, names: dict[str, str], model: str) -> Iterator[Json]:
    if message.role == "tool":
        yield {"functionResponse": _function_response(message, names, model)}
        return
    for part in message.content:
        if isinstance(part, ReasoningPart):
            yield from _reasoning_parts(part)
        elif isinstance(part, TextPart):
            if part.text:
                yield {"text": part.text}
        else:
            yield _media(part, model)
    yield from _calls(message)


def _reasoning_parts(part: ReasoningPart) -> Iterator[Json]:
    signature = part.signature or ""
    if signature.startswith(THOUGHT_PREFIX):
        yield {"text": part.text, "thought": True, "thoughtSignature": signature.removeprefix(THOUGHT_PREFIX)}
    elif signature.startswith(TEXT_PREFIX):
        yield {"text": "", "thoughtSignature": signature.removeprefix(TEXT_PREFIX)}


def _calls(message: Message) -> Iterator[Json]:
    """Yields the tool calls with their signatures. Only the first call needs one; other models' calls have none."""
    signatures: dict[str, str] = {}
    for part in message.content:
        if isinstance(part, ReasoningPart) and (part.signature or "").startswith(CALL_PREFIX):
            signature, _, call_id = (part.signature or "").removeprefix(CALL_PREFIX).partition(":")
            signatures[call_id] = signature
    for index, call in enumerate(message.tool_calls):
        function = {"id": call.id, "name": call.name, "args": arguments_of(call)}
        unsigned = None if index or signatures else PLACEHOLDER_SIGNATURE
        signed = signatures.get(call.id, unsigned)
        yield {"functionCall": function, "thoughtSignature": signed} if signed else {"functionCall": function}


def _media(part: ImagePart | FilePart, model: str) -> Json:
    if isinstance(part, ImagePart) and part.url:
        media_type, _ = guess_type(urlsplit(part.url).path)  # `media_type` is that of `data`
        return {"fileData": {"fileUri": part.url, "mimeType": media_type or part.media_type}}
    return {"inlineData": {"data": _checked_base64(part, model), "mimeType": part.media_type}}


def _checked_base64(part: ImagePart | FilePart, model: str) -> str:
    data = part.data or ""
    try:
        b64decode(data, validate=True)
    except ValueError:
        raise BadRequestError(f"the data of a {part.media_type!r} is not base64", model=model) from None
    return data


def _function_response(message: Message, names: dict[str, str], model: str) -> Json:
    call_id = message.tool_call_id or ""
    name = names.get(call_id) or message.name
    if not name:
        raise BadRequestError(f"a tool message answers {call_id!r}, which no earlier message calls", model=model)
    result = {"error" if message.is_error else "output": message.text}
    response = {"id": call_id, "name": name, "response": result}
    media = [_media(part, model) for part in message.content if isinstance(part, ImagePart | FilePart)]
    return {**response, "parts": media} if media else response
