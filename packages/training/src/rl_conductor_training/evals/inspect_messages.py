"""Converts inspect-ai's messages, tools and options to the values of `rl_conductor`, and its replies back.

Samples, tools and models write what is converted here: our own data in a message is validated, and ignored if it is
malformed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    Content,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
    StopReason,
)
from inspect_ai.tool import ToolCall as InspectToolCall
from inspect_ai.tool import ToolChoice, ToolFunction, ToolInfo
from pydantic import ValidationError

from rl_conductor.errors import ConfigError
from rl_conductor.types import (
    Completion,
    ContentPart,
    Continuation,
    FilePart,
    ImagePart,
    JsonFormat,
    Message,
    ReasoningPart,
    Request,
    Sampling,
    TextPart,
    Tool,
    ToolCall,
    Usage,
)

CONTINUATION = "rl_conductor_continuation"
"""The key in the metadata of an assistant message that carries the state from one turn to the next."""
UNSUPPORTED: dict[str, object] = {
    "best_of": 1,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "logprobs": False,
    "num_choices": 1,
    "presence_penalty": 0.0,
    "top_k": None,
}
"""Options that would change the result, but that not every worker of a pool has, with the value without effect."""
EFFORTS = {"minimal": "minimal", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
STOP_REASONS: dict[str, StopReason] = {"length": "max_tokens"}
"""Our finish reasons with another name in inspect-ai."""


def core_request(
    messages: Sequence[ChatMessage], tools: Sequence[ToolInfo], choice: ToolChoice, config: GenerateConfig
) -> Request:
    """Converts inspect-ai's requests to a model.

    Raises:
        ConfigError: a message has content, or the configuration an option, that not every worker can take.
    """
    refused = [name for name, default in UNSUPPORTED.items() if getattr(config, name) not in (None, default)]
    if refused:
        raise ConfigError(f"a conductor has no option {refused[0]!r}; leave it out of the configuration of this eval")
    schema = config.response_schema
    return Request(
        messages=tuple(core_message(message) for message in messages),
        tools=tuple(core_tool(tool) for tool in tools),
        tool_choice=_core_tool_choice(choice),
        parallel_tool_calls=config.parallel_tool_calls is not False,
        response_format=None
        if schema is None
        else JsonFormat(
            name=schema.name, json_schema=schema.json_schema.model_dump(exclude_none=True), strict=schema.strict
        ),
        sampling=Sampling(
            temperature=config.temperature,
            top_p=config.top_p,
            max_tokens=config.max_tokens,
            seed=config.seed,
            stop=tuple(config.stop_seqs or ()),
            effort=cast("Any", EFFORTS.get(config.reasoning_effort or "")),
        ),
        timeout=config.attempt_timeout,
    )


def core_tool(tool: ToolInfo) -> Tool:
    """Converts a tool of inspect-ai to one of the core."""
    parameters = tool.parameters.model_dump(exclude_none=True)
    return Tool(name=tool.name, description=tool.description, parameters=parameters)


def _core_tool_choice(choice: ToolChoice) -> str:
    if isinstance(choice, ToolFunction):
        return str(choice.name)
    return "required" if choice == "any" else str(choice)


def core_message(message: ChatMessage) -> Message:
    """Converts a message of inspect-ai to one of the core.

    Raises:
        ConfigError: it has content that not every worker can take, such as audio.
    """
    parts = tuple(_parts(message))
    if message.role == "tool":
        text = message.error.message if message.error else ""
        content = parts or ((TextPart(text=text),) if text else ())
        return Message(role="tool", content=content, tool_call_id=message.tool_call_id, name=message.function)
    if message.role == "assistant":
        calls = tuple(
            ToolCall(id=call.id, name=call.function, arguments=json.dumps(call.arguments, ensure_ascii=False))
            for call in message.tool_calls or ()
        )
        return Message(role="assistant", content=parts, tool_calls=calls, continuation=_continuation(message))
    return Message(role=message.role, content=parts)


def _continuation(message: ChatMessageAssistant) -> Continuation | None:
    value = (message.metadata or {}).get(CONTINUATION)
    try:
        return None if value is None else Continuation.model_validate(value)
    except ValidationError:
        return None  # not ours; without it this turn is planned like any other


def _parts(message: ChatMessage) -> Iterator[ContentPart]:
    if isinstance(message.content, str):
        if message.content:
            yield TextPart(text=message.content)
        return
    for content in message.content:
        part = _part(content)
        if part is None and message.role != "assistant":
            raise ConfigError(
                f"a {message.role} message has content of type {content.type!r}, which not every worker can take; "
                "write text, images or documents as data"
            )
        if part is not None:
            yield part


def _part(content: Content) -> ContentPart | None:
    """Converts one part; `None` if workers can't take it."""
    match content.type:
        case "text":
            return TextPart(text=content.text)
        case "reasoning":
            return None if content.redacted else ReasoningPart(text=content.reasoning, signature=content.signature)
        case "image":
            kind, data = _data_url(content.image)
            return ImagePart(url=content.image) if data is None else ImagePart(media_type=kind, data=data)
        case "document":
            kind, data = _data_url(content.document)
            name = content.filename or "document.pdf"
            return None if data is None else FilePart(media_type=kind, name=name, data=data)
    return None


def _data_url(text: str) -> tuple[str, str | None]:
    """Returns the media type and the base64 content of a data URL; no content if it is another URL."""
    head, separator, data = text.partition(";base64,")
    return (head.removeprefix("data:"), data) if separator and head.startswith("data:") else ("", None)


# ------------------------------------------------------------------------------- core to inspect-ai


def inspect_output(completion: Completion, usage: Usage, metadata: dict[str, Any]) -> ModelOutput:
    """Converts the conductor's answer; `usage` is that of the whole run."""
    message = completion.message
    reply = ChatMessageAssistant(
        content=list(_contents(message)) if len(message.content) > 1 else message.text,
        tool_calls=[inspect_tool_call(call) for call in message.tool_calls] or None,
        model=completion.model,
        source="generate",
        metadata=None
        if message.continuation is None
        else {CONTINUATION: message.continuation.model_dump(mode="json", exclude_none=True)},
    )
    reason = STOP_REASONS.get(completion.finish_reason, cast("StopReason", completion.finish_reason))
    return ModelOutput(
        model=completion.model,
        choices=[ChatCompletionChoice(message=reply, stop_reason=reason)],
        usage=inspect_usage(usage),
        metadata=metadata,
    )


def _contents(message: Message) -> Iterable[Content]:
    for part in message.content:
        if isinstance(part, TextPart):
            yield ContentText(text=part.text)
        elif isinstance(part, ReasoningPart):
            yield ContentReasoning(reasoning=part.text, signature=part.signature)


def inspect_tool_call(call: ToolCall) -> InspectToolCall:
    """Converts a tool call; invalid arguments become its `parse_error`, which inspect-ai shows to the model."""
    problem = f"the arguments of {call.name} are not a JSON object: {call.arguments}"
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        arguments, problem = None, f"{problem} ({error})"
    if isinstance(arguments, dict):
        return InspectToolCall(id=call.id, function=call.name, arguments=arguments)
    return InspectToolCall(id=call.id, function=call.name, arguments={}, parse_error=problem)


def inspect_usage(usage: Usage) -> ModelUsage:
    """Converts token counts and cost; in inspect-ai, input tokens don't include cached ones."""
    return ModelUsage(
        input_tokens=max(usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens, 0),
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        input_tokens_cache_read=usage.cached_tokens or None,
        input_tokens_cache_write=usage.cache_write_tokens or None,
        reasoning_tokens=usage.reasoning_tokens or None,
        total_cost=None if usage.unpriced_calls else float(usage.cost),
    )
