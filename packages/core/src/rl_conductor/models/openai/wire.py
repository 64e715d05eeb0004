"""The Chat Completions protocol, as OpenAI's service and the many that imitate it speak it: pure translation.

Nothing here opens a connection or knows a vendor's library. What a server sends is untrusted: it is validated
before it is read, and a whole reply is read as a stream of one frame, so that there is one reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from rl_conductor._internal.validation import first_problem
from rl_conductor.errors import BadResponseError, ContextLengthError, ModelError, RateLimitError
from rl_conductor.models.base import LONGEST_ERROR, priced, status_error
from rl_conductor.text.reasoning import ReasoningStart
from rl_conductor.types import (
    Completion,
    ContentPart,
    Delta,
    FilePart,
    FinishReason,
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


@dataclass(frozen=True)
class Dialect:
    """Where a server departs from the others."""

    max_tokens: str = "max_tokens"
    """What the limit of output tokens is called."""
    files: bool = False
    """Takes documents."""
    array_bounds: bool = False
    """As in `Capabilities`; `False` where a model behind the server may refuse them."""
    grammar: Callable[[str], dict[str, Any]] | None = None
    """The fields by which a GBNF grammar is sent; `None` where decoding can't be held to one."""
    lengths: Literal["grammar", "check"] = "grammar"
    """As in `Capabilities`."""
    reasoning_start: ReasoningStart = "unknown"
    """As in `Capabilities`. Servers of open models may have no parser for the reasoning of the model at hand."""


DIALECTS = {
    "openai": Dialect(max_tokens="max_completion_tokens", files=True, array_bounds=True, reasoning_start="outside"),
    "openrouter": Dialect(files=True),
    "compatible": Dialect(),
    "llama.cpp": Dialect(array_bounds=True, grammar=lambda gbnf: {"grammar": gbnf}),
    # vLLM ignores the older `guided_grammar` without a word. A grammar takes a special token for the text of its name.
    "vllm": Dialect(
        array_bounds=True,
        grammar=lambda gbnf: {"structured_outputs": {"grammar": gbnf}, "skip_special_tokens": False},
        lengths="check",
    ),
}

# ----------------------------------------------------------------------------------------- requests


def options_of(request: Request, dialect: Dialect) -> dict[str, Any]:
    """The fields of the request's body; what the caller left open is left to the server."""
    sampling = request.sampling
    options = {
        "messages": [_message(message) for message in request.messages],
        "tools": [_tool(tool) for tool in request.tools],
        "tool_choice": _choice(request),
        "parallel_tool_calls": False if request.tools and not request.parallel_tool_calls else None,
        "response_format": _format(request.response_format),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        dialect.max_tokens: sampling.max_tokens,
        "seed": sampling.seed,
        "stop": list(sampling.stop),
        "reasoning_effort": sampling.effort,
    }
    return {name: value for name, value in options.items() if value not in (None, [])}


def extra_fields(request: Request, dialect: Dialect) -> dict[str, Any]:
    """The fields that OpenAI's own service doesn't know."""
    if dialect.grammar is not None and isinstance(request.response_format, Grammar):
        return dialect.grammar(request.response_format.gbnf)
    return {}


def _message(message: Message) -> dict[str, Any]:
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
    """Plain text where that says it all, because not every server reads parts.

    Some servers take pictures in the results of tools; the others refuse them, which is better than losing them.
    """
    spoken = message.role not in ("user", "tool")
    if spoken or all(isinstance(part, TextPart | ReasoningPart) for part in message.content):
        return message.text
    return [_part(part) for part in message.content if not isinstance(part, ReasoningPart)]


def _part(part: TextPart | ImagePart | FilePart) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            return {"type": "image_url", "image_url": {"url": part.url or _data_url(part.media_type, part.data)}}
        case FilePart():
            return {"type": "file", "file": {"filename": part.name, "file_data": _data_url(part.media_type, part.data)}}


def _data_url(media_type: str, data: str | None) -> str:
    return f"data:{media_type};base64,{data or ''}"


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _choice(request: Request) -> str | dict[str, Any] | None:
    if not request.tools:
        return None
    if request.tool_choice in ("auto", "none", "required"):
        return request.tool_choice
    return {"type": "function", "function": {"name": request.tool_choice}}


def _format(form: JsonFormat | Grammar | None) -> dict[str, Any] | None:
    if not isinstance(form, JsonFormat):
        return None
    if form.json_schema is None:
        return {"type": "json_object"}
    schema = {"name": form.name, "schema": form.json_schema, "strict": _is_strict(form.json_schema)}
    return {"type": "json_schema", "json_schema": schema}


def _is_strict(schema: Any) -> bool:
    """Whether OpenAI can hold decoding to it: it refuses `strict` for an object with optional or unnamed fields."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    fields = schema.get("properties", {})
    closed = schema.get("additionalProperties") is False and set(schema.get("required", ())) == set(fields)
    return (schema.get("type") != "object" or closed) and all(map(_is_strict, schema.values()))


# ------------------------------------------------------------------------------------------ replies


class _Function(BaseModel):
    name: str | None = None
    arguments: str | None = None


class _Fragment(BaseModel):
    """A tool call or the next piece of one."""

    index: int | None = None
    """Which call it continues; whole replies have none."""
    id: str | None = None
    function: _Function = _Function()


class _Said(BaseModel):
    content: str | None = None
    refusal: str | None = None
    """OpenAI's own "I can't help with that", which comes instead of content."""
    reasoning: str | None = Field(None, validation_alias=AliasChoices("reasoning_content", "reasoning"))
    tool_calls: list[_Fragment] | None = None


class _Choice(BaseModel):
    said: _Said = Field(validation_alias=AliasChoices("message", "delta"))
    finish_reason: str | None = None


Count = Annotated[int | None, Field(ge=0)]


class _InputDetails(BaseModel):
    cached_tokens: Count = None


class _OutputDetails(BaseModel):
    reasoning_tokens: Count = None


class _Usage(BaseModel):
    prompt_tokens: Count = None
    completion_tokens: Count = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None

    def counted(self) -> Usage:
        read, written = self.prompt_tokens or 0, self.completion_tokens or 0
        cached = self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None
        thought = self.completion_tokens_details.reasoning_tokens if self.completion_tokens_details else None
        return Usage(
            input_tokens=read,
            cached_tokens=min(cached or 0, read),
            output_tokens=written,
            reasoning_tokens=min(thought or 0, written),
        )


class _Frame(BaseModel):
    """A whole reply, or a chunk of one."""

    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    """What a gateway sends in place of choices when it had already promised success."""


@dataclass
class _Call:
    index: int | None
    id: str
    name: str = ""
    arguments: str = ""


class Reply:
    """A reply as it grows, frame by frame."""

    def __init__(self, model: str) -> None:
        """`model` is the name asked for."""
        self._asked = self._model = model
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._finish = ""
        self._refused = False
        self._usage = Usage()

    def add(self, frame: object) -> Delta:
        """What `frame`, a library's object or a mapping, adds. Raises `ModelError`."""
        try:
            read = _Frame.model_validate(frame, from_attributes=True)
        except ValidationError as error:
            raise self._unreadable(error) from None
        if read.error:
            raise refusal(read.error, model=self._asked)
        if read.choices is None:
            raise BadResponseError(f"{self._asked}: not a chat completion: it has no choices", model=self._asked)
        self._model = read.model or self._model
        self._usage = read.usage.counted() if read.usage else self._usage
        return self._add(read.choices[0]) if read.choices else Delta()

    def completion(self, price: Price | None) -> Completion:
        """The whole. Raises `BadResponseError` when the server stopped before the reply was complete."""
        if self._finish in ("", "error", "abort"):
            raise BadResponseError(f"{self._asked}: the reply broke off before it was complete", model=self._asked)
        reasoning, text = "".join(self._reasoning), "".join(self._text)
        content: list[ContentPart] = [ReasoningPart(text=reasoning)] if reasoning else []
        content += [TextPart(text=text)] if text else []
        calls = tuple(self._tool_call(call) for call in self._calls)
        return Completion(
            message=Message(role="assistant", content=tuple(content), tool_calls=calls),
            usage=priced(self._usage, price),
            finish_reason=self._finish_reason(),
            model=self._model,
        )

    def _add(self, choice: _Choice) -> Delta:
        said = choice.said
        text, reasoning = said.content or said.refusal or "", said.reasoning or ""
        self._text.append(text)
        self._reasoning.append(reasoning)
        for fragment in said.tool_calls or ():
            self._add_call(fragment)
        self._refused = self._refused or bool(said.refusal)
        self._finish = choice.finish_reason or self._finish
        return Delta(text=text, reasoning=reasoning)

    def _add_call(self, fragment: _Fragment) -> None:
        last = next((call for call in reversed(self._calls) if call.index == fragment.index), None)
        # Some servers give every call the index 0: a new id is a new call too.
        if last is None or fragment.index is None or (fragment.id and fragment.id != last.id):
            last = _Call(fragment.index, fragment.id or f"call_{len(self._calls)}")
            self._calls.append(last)
        last.name = last.name or fragment.function.name or ""
        last.arguments += fragment.function.arguments or ""

    def _tool_call(self, call: _Call) -> ToolCall:
        if not call.name:
            raise BadResponseError(f"{self._asked}: a tool call names no tool", model=self._asked)
        return ToolCall(id=call.id, name=call.name, arguments=call.arguments or "{}")

    def _unreadable(self, error: ValidationError) -> BadResponseError:
        return BadResponseError(f"{self._asked}: not a chat completion: {first_problem(error)}", model=self._asked)

    def _finish_reason(self) -> FinishReason:
        """Servers have more words for a natural end than we could list (`eos`, `stop_sequence`...)."""
        if self._finish == "length":
            return "length"
        if self._refused or self._finish == "content_filter":
            return "content_filter"
        return "tool_calls" if self._calls else "stop"


# ------------------------------------------------------------------------------------------- errors

TOO_LONG = re.compile(r"context (length|size|window)", re.IGNORECASE)
"""How servers that give no code say that a request is too long."""


def refusal(body: object, *, model: str, status: int | None = None, retry_after: float | None = None) -> ModelError:
    """The error that a server's `error` object means; without an HTTP `status`, its own `code` may hold one."""
    fields = body if isinstance(body, Mapping) else {"message": body}
    said = str(fields.get("message") or fields.get("detail") or body)[:LONGEST_ERROR]
    code = str(fields.get("code"))
    if status is None and re.fullmatch("[45]..", code):
        status = int(code)
    message = f"{model}: {said}"
    if (status or 400) < 429 and (code == "context_length_exceeded" or TOO_LONG.search(said)):
        return ContextLengthError(message, model=model, status=status)
    if code == "insufficient_quota":
        return RateLimitError(message, model=model, status=status, retryable=False)
    if status is None:
        return ModelError(message, model=model, retryable=True)
    return status_error(message, model=model, status=status, retry_after=retry_after)
