"""Finds and replaces every text in messages, requests and records, without changing their structure. Pure.

Each `rewrite_...` function applies a function to all texts, always in the same order. `texts_of` uses it to collect
them, `with_texts` to put others in their place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rl_conductor.text.delimiters import NONCE_ATTR
from rl_conductor.trace.trace import Call, Nested, ToolUse
from rl_conductor.types import (
    Completion,
    ContentPart,
    FilePart,
    Message,
    ReasoningPart,
    Request,
    TextPart,
    ToolCall,
)

T = TypeVar("T")
Rewrite = Callable[[str], str]

MAX_JSON_DEPTH = 100
"""JSON that is nested more deeply is treated as plain text."""

_TAG = re.compile(rf'(</?[a-z]+(?: step="\d{{1,3}}(?: of round \d{{1,3}})?")? {NONCE_ATTR}>)')
"""A delimiter of a prompt. Guardrails do not see it: to change its nonce would let the text inside forge an end."""


def texts_of(value: T, rewrite: Callable[[T, Rewrite], T]) -> tuple[str, ...]:
    """Collects the texts of `value` that are not blank."""
    texts: list[str] = []

    def collect(text: str) -> str:
        if text.strip():
            texts.append(text)
        return text

    rewrite(value, collect)
    return tuple(texts)


def with_texts(value: T, rewrite: Callable[[T, Rewrite], T], texts: Sequence[str]) -> T:
    """Puts `texts` in the place of those that `texts_of` returned."""
    remaining = iter(texts)
    return rewrite(value, lambda text: next(remaining) if text.strip() else text)


def rewrite_request(request: Request, rewrite: Rewrite) -> Request:
    """Rewrites the whole conversation. Tools and formats belong to the caller's program and stay."""
    messages = tuple(rewrite_message(message, rewrite) for message in request.messages)
    return request.model_copy(update={"messages": messages})


def rewrite_message(message: Message, rewrite: Rewrite, *, is_json: bool = False) -> Message:
    """Rewrites the parts, tool calls, name and stored prompt of a message.

    Args:
        message: the message.
        rewrite: the function to apply.
        is_json: whether the text is JSON, in which strings are rewritten one by one.
    """
    is_prompt = message.role == "user"
    content = (_rewrite_part(part, rewrite, is_prompt=is_prompt, is_json=is_json) for part in message.content)
    update: dict[str, Any] = {
        "content": tuple(part for part in content if part is not None),
        "tool_calls": tuple(_rewrite_tool_call(call, rewrite) for call in message.tool_calls),
    }
    if message.name is not None and rewrite(message.name) != message.name:
        update["name"] = None  # vendors restrict the characters of names
    if message.continuation is not None and message.continuation.prompt is not None:
        prompt = rewrite_prompt(message.continuation.prompt, rewrite)
        update["continuation"] = message.continuation.model_copy(update={"prompt": prompt})
    return message.model_copy(update=update)


def rewrite_prompt(prompt: str, rewrite: Rewrite) -> str:
    """Rewrites the text between the delimiters of a prompt, and leaves the delimiters as they are."""
    return "".join(piece if index % 2 else rewrite(piece) for index, piece in enumerate(_TAG.split(prompt)))


def rewrite_call(call: Call, rewrite: Rewrite) -> Call:
    """Rewrites the texts inside of a call: those of an agent's own calls and tools."""
    if call.nested is None:
        return call
    return call.model_copy(update={"nested": _rewrite_nested(call.nested, rewrite)})


def _rewrite_nested(nested: Nested, rewrite: Rewrite) -> Nested:
    """Leaves runs of conductors, which apply the guardrails themselves."""
    calls = tuple(_rewrite_nested_call(call, rewrite) for call in nested.calls)
    tools = tuple(_rewrite_tool_use(use, rewrite) for use in nested.tools)
    return nested.model_copy(update={"calls": calls, "tools": tools})


def _rewrite_nested_call(call: Call, rewrite: Rewrite) -> Call:
    call = rewrite_call(call, rewrite)
    if call.completion is None:
        return call
    return call.model_copy(update={"completion": rewrite_completion(call.completion, rewrite)})


def rewrite_completion(completion: Completion, rewrite: Rewrite) -> Completion:
    """Rewrites the message of a completion."""
    return completion.model_copy(update={"message": rewrite_message(completion.message, rewrite)})


def _rewrite_tool_use(use: ToolUse, rewrite: Rewrite) -> ToolUse:
    return use.model_copy(update={"arguments": _rewrite_json(use.arguments, rewrite), "result": rewrite(use.result)})


def _rewrite_tool_call(call: ToolCall, rewrite: Rewrite) -> ToolCall:
    return call.model_copy(update={"arguments": _rewrite_json(call.arguments, rewrite)})


def _rewrite_part(part: ContentPart, rewrite: Rewrite, *, is_prompt: bool, is_json: bool) -> ContentPart | None:
    if isinstance(part, TextPart):
        if is_json:
            return part.model_copy(update={"text": _rewrite_json(part.text, rewrite)})
        return part.model_copy(update={"text": rewrite_prompt(part.text, rewrite) if is_prompt else rewrite(part.text)})
    if isinstance(part, ReasoningPart):  # vendors reject reasoning that differs from what they signed
        return part if rewrite(part.text) == part.text else None
    if isinstance(part, FilePart):
        return part.model_copy(update={"name": rewrite(part.name)})
    return part


def _rewrite_json(text: str, rewrite: Rewrite) -> str:
    """Rewrites the strings, numbers and keys in JSON, so that it stays JSON; rewrites other text as a whole."""
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError):
        return rewrite(text)
    if not _is_within(value, MAX_JSON_DEPTH):
        return rewrite(text)
    rewritten = _rewrite_value(value, rewrite)
    return text if rewritten == value else json.dumps(rewritten, ensure_ascii=False)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses objects with repeated keys, of which a parser would hide all values but the last."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("repeated key")
    return value


def _is_within(value: Any, depth: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(_is_within(child, depth - 1) for child in children)


def _rewrite_value(value: Any, rewrite: Rewrite) -> Any:
    if isinstance(value, dict):
        return {rewrite(key): _rewrite_value(item, rewrite) for key, item in value.items()}
    if isinstance(value, list):
        return [_rewrite_value(item, rewrite) for item in value]
    if isinstance(value, str):
        return rewrite(value)
    if isinstance(value, bool) or value is None:
        return value
    text = json.dumps(value)
    rewritten = rewrite(text)
    return value if rewritten == text else rewritten
