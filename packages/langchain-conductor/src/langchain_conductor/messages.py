"""LangChain's messages, tools and usage as the values of `rl_conductor`, and back: pure translation.

Names that begin with `core_` make the core's values, names that begin with `lc_` make LangChain's. Histories come from
users, stores and models: what they carry for us is validated before it is believed, and forgotten when it is malformed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages import ToolCall as LCToolCall
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ValidationError

from rl_conductor.errors import ConfigError
from rl_conductor.models.base import priced
from rl_conductor.types import (
    Completion,
    ContentPart,
    Continuation,
    FilePart,
    FinishReason,
    ImagePart,
    Message,
    Price,
    ReasoningPart,
    TextPart,
    Tool,
    ToolCall,
    Usage,
    Value,
)

NAME = "conductor"
"""As which provider a conductor shows in LangChain's traces."""
CARRIED = "conductor"
"""The key of an AI message's `additional_kwargs` under which `Carried` travels."""

NO_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
"""What vendors take in no name."""
LONGEST_NAME = 64

AnyTool = Mapping[str, Any] | type | Callable[..., Any] | BaseTool
"""Whatever LangChain takes for a tool."""


class Carried(Value):
    """What an AI message brings along for the turn after it, as plain JSON."""

    continuation: Continuation | None = None
    reasoning: tuple[ReasoningPart, ...] = ()
    """Thoughts that a vendor wants back unchanged."""


# ------------------------------------------------------------------------------------ into the core


def core_messages(messages: Iterable[BaseMessage]) -> tuple[Message, ...]:
    """A conversation.

    Raises:
        ConfigError: a message holds what no worker can take, such as audio.
    """
    return tuple(core_message(message) for message in messages)


def core_message(message: BaseMessage) -> Message:
    """One message.

    Raises:
        ConfigError: it holds what no worker can take, such as audio.
    """
    match message:
        case AIMessage():
            return _core_reply(message)
        case ToolMessage():
            content = tuple(_parts(message))
            return Message(role="tool", content=content, tool_call_id=message.tool_call_id, name=message.name)
        case HumanMessage():
            return Message(role="user", content=tuple(_parts(message)), name=message.name)
        case SystemMessage():
            return Message(role="system", content=tuple(_parts(message)), name=message.name)
        case ChatMessage(role="user" | "system" | "assistant" as role):
            return Message(role=cast("Any", role), content=tuple(_parts(message)), name=message.name)
    raise ConfigError(f"a {type(message).__name__} can't be sent; write a system, human, AI or tool message")


def core_completion(message: AIMessage, *, model: str, price: Price | None) -> Completion:
    """A model's reply. `model` is the one that was asked, for replies that don't say who answered."""
    told = message.response_metadata
    return Completion(
        message=core_message(message),
        usage=priced(core_usage(message.usage_metadata), price if message.usage_metadata else None),
        finish_reason=_finish_reason(message),
        model=str(told.get("model_name") or told.get("model") or model),
    )


def core_usage(usage: UsageMetadata | None) -> Usage:
    """Token counts, without calls and cost."""
    if usage is None:
        return Usage()
    read, written = max(usage["input_tokens"], 0), max(usage["output_tokens"], 0)
    details = usage.get("input_token_details", {})
    cached = max(min(details.get("cache_read") or 0, read), 0)
    kept = max(min(details.get("cache_creation") or 0, read - cached), 0)
    thought = usage.get("output_token_details", {}).get("reasoning") or 0
    return Usage(
        input_tokens=read,
        cached_tokens=cached,
        cache_write_tokens=kept,
        output_tokens=written,
        reasoning_tokens=max(min(thought, written), 0),
    )


def core_tool(tool: AnyTool, *, strict: bool | None = None) -> Tool:
    """A tool; `strict` asks that arguments have no other fields than its schema names.

    Raises:
        ConfigError: it is none, or one that only a vendor's own server can run.
    """
    try:
        function = convert_to_openai_tool(tool, strict=strict).get("function")
    except ValueError as error:
        why = f"{tool!r} is no tool; give a function, a LangChain tool, a pydantic class or a JSON schema with a title"
        raise ConfigError(why) from error
    if function is None:
        raise ConfigError(f"the tool {tool!r} runs on a vendor's server, not on every worker; give a function instead")
    given = {name: function[name] for name in ("name", "description", "parameters") if function.get(name)}
    return Tool.model_validate(given)


def core_tool_choice(choice: str | bool | Mapping[str, Any] | None, tools: Sequence[Tool]) -> str:
    """`auto`, `none`, `required` or a tool's name, however LangChain, OpenAI or Anthropic spell it.

    Raises:
        ConfigError: no tool has that name.
    """
    if isinstance(choice, Mapping):
        choice = choice.get("function", choice).get("name") or choice.get("type")
    if choice in (None, False, "auto", "none"):
        return "none" if choice == "none" else "auto"
    if choice in (True, "any", "required"):
        return "required"
    if choice not in (names := [tool.name for tool in tools]):
        raise ConfigError(f"tool_choice is {choice!r}; write 'auto', 'any', 'none' or one of {', '.join(names)}")
    return str(choice)


def _core_reply(message: AIMessage) -> Message:
    carried = _carried(message)
    parts = [part for part in _parts(message) if not (carried.reasoning and isinstance(part, ReasoningPart))]
    return Message(
        role="assistant",
        content=(*carried.reasoning, *parts),
        tool_calls=tuple(_core_calls(message)),
        name=message.name,
        continuation=carried.continuation,
    )


def _carried(message: AIMessage) -> Carried:
    try:
        return Carried.model_validate(message.additional_kwargs.get(CARRIED, {}))
    except ValidationError:
        return Carried()  # it was not ours: without it this turn is planned like any other


def _core_calls(message: AIMessage) -> Iterator[ToolCall]:
    calls = [(call["id"], call["name"], json.dumps(call["args"], ensure_ascii=False)) for call in message.tool_calls]
    calls += [(call["id"], call["name"] or "", call["args"] or "") for call in message.invalid_tool_calls]
    for number, (call_id, name, arguments) in enumerate(calls):
        yield ToolCall(id=call_id or f"call_{number}", name=name, arguments=arguments)


def _parts(message: BaseMessage) -> Iterator[ContentPart]:
    """The content; tool calls are read elsewhere, and what other vendors' models noted for themselves is left out."""
    for block in cast("list[dict[str, Any]]", message.content_blocks):
        match block:
            case {"type": "text" | "text-plain", "text": str(text)}:
                if text:
                    yield TextPart(text=text)
            case {"type": "reasoning"}:
                yield from _thought(block.get("reasoning"), block.get("extras", {}).get("signature"))
            case {"type": "non_standard", "value": {"type": "thinking", "thinking": str(text), **other}}:
                yield from _thought(text, cast("str | None", other.get("signature")))
            case {"type": "image", **image} if "base64" in image or "url" in image:
                yield _image(image)
            case {"type": "file", "base64": str(data)}:
                yield FilePart(data=data, **_file_facts(block))
            case _ if not isinstance(message, AIMessage):
                raise ConfigError(_refusal(message, block))


def _thought(text: str | None, signature: str | None) -> Iterator[ReasoningPart]:
    if text or signature:
        yield ReasoningPart(text=text or "", signature=signature)


def _image(block: Mapping[str, Any]) -> ImagePart:
    kind = block.get("mime_type") or "image/png"
    head, comma, data = str(block.get("url", "")).partition(";base64,")
    if comma and head.startswith("data:"):
        return ImagePart(media_type=head.removeprefix("data:"), data=data)
    return ImagePart(media_type=kind, url=block.get("url"), data=block.get("base64"))


def _file_facts(block: Mapping[str, Any]) -> dict[str, Any]:
    name = block.get("filename") or block.get("extras", {}).get("filename")
    facts = {"media_type": block.get("mime_type"), "name": name}
    return {key: value for key, value in facts.items() if value}


def _refusal(message: BaseMessage, block: Mapping[str, Any]) -> str:
    kind = block.get("value", block).get("type") if block["type"] == "non_standard" else block["type"]
    cure = (
        "its content as base64, since workers of other vendors can't fetch it"
        if kind == "file"
        else "text, images or files"
    )
    return f"a {message.type} message holds a block of type {kind!r} that can't be sent to every worker; give {cure}"


CUT_SHORT = ("length", "max_tokens", "model_length")
WITHHELD = ("content_filter", "safety", "refusal", "prohibited_content", "blocklist", "recitation")


def _finish_reason(message: AIMessage) -> FinishReason:
    told = message.response_metadata
    reason = str(told.get("finish_reason") or told.get("stop_reason") or told.get("done_reason")).lower()
    if reason in CUT_SHORT:
        return "length"
    if reason in WITHHELD:
        return "content_filter"
    return "tool_calls" if message.tool_calls else "stop"


# --------------------------------------------------------------------------------- out of the core


def lc_messages(messages: Iterable[Message]) -> list[BaseMessage]:
    """A conversation, for a LangChain model to read."""
    return [lc_message(message) for message in messages]


def lc_message(message: Message) -> BaseMessage:
    """One message."""
    content: Any = _content(message)
    match message.role:
        case "system":
            return SystemMessage(content, name=message.name)
        case "user":
            return HumanMessage(content, name=message.name)
        case "tool":
            return ToolMessage(content, tool_call_id=message.tool_call_id or "", name=message.name)
        case "assistant":
            return AIMessage(content, name=message.name, **_lc_calls(message))


def lc_reply(message: Message, **fields: Any) -> AIMessage:
    """The Conductor's answer, for the caller; `fields` are further ones of the `AIMessage`."""
    thoughts = tuple(part for part in message.content if isinstance(part, ReasoningPart))
    signed = tuple(part for part in thoughts if part.signature)
    carried = Carried(continuation=message.continuation, reasoning=signed)
    extra: dict[str, Any] = {}
    if carried != Carried():
        extra[CARRIED] = carried.model_dump(mode="json", exclude_none=True)
    if thoughts:
        extra["reasoning_content"] = "".join(part.text for part in thoughts)  # where LangChain looks for it
    return AIMessage(message.text, name=message.name, additional_kwargs=extra, **_lc_calls(message), **fields)


def lc_usage(usage: Usage) -> UsageMetadata:
    """Token counts; calls and cost have no place in them."""
    made = UsageMetadata(
        input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, total_tokens=usage.total_tokens
    )
    details = InputTokenDetails()
    if usage.cached_tokens:
        details["cache_read"] = usage.cached_tokens
    if usage.cache_write_tokens:
        details["cache_creation"] = usage.cache_write_tokens
    if details:
        made["input_token_details"] = details
    if usage.reasoning_tokens:
        made["output_token_details"] = OutputTokenDetails(reasoning=usage.reasoning_tokens)
    return made


def plain_name(title: str) -> str:
    """`title` as every vendor takes it for the name of a tool or of a schema."""
    return NO_NAME.sub("_", title)[:LONGEST_NAME]


def lc_tool(tool: Tool) -> dict[str, Any]:
    """A tool in the form that every `bind_tools` takes."""
    return {"type": "function", "function": tool.model_dump()}


def _lc_calls(message: Message) -> dict[str, Any]:
    """The fields of an `AIMessage` for calls with valid arguments and for others."""
    calls = [_lc_call(call) for call in message.tool_calls]
    kinds = {"tool_calls": "tool_call", "invalid_tool_calls": "invalid_tool_call"}
    return {field: [call for call in calls if call["type"] == kind] for field, kind in kinds.items()}


def _lc_call(call: ToolCall) -> LCToolCall | InvalidToolCall:
    wrong = "they are no JSON object"
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        arguments, wrong = None, str(error)
    if isinstance(arguments, dict):
        return LCToolCall(type="tool_call", id=call.id, name=call.name, args=arguments)
    return InvalidToolCall(type="invalid_tool_call", id=call.id, name=call.name, args=call.arguments, error=wrong)


def _content(message: Message) -> Any:
    """Plain text where that says it all, because not every model reads blocks."""
    told = [part for part in message.content if not isinstance(part, ReasoningPart) or part.signature]
    return message.text if all(isinstance(part, TextPart) for part in told) else [_block(part) for part in told]


def _block(part: ContentPart) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart(url=str(url)):
            return {"type": "image", "url": url}
        case ImagePart():
            return {"type": "image", "base64": part.data, "mime_type": part.media_type}
        case FilePart():
            return {"type": "file", "base64": part.data, "mime_type": part.media_type, "filename": part.name}
        case ReasoningPart():  # as Anthropic's and Google's packages take it back; OpenAI's leaves it out
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
