"""Parses logs of model calls, one JSON object per line, as gateways and vendors write them.

Supported shapes, and any mixture of them:

- request and response: `{"request": {...}, "response": {...}}`, as proxies and HTTP hooks write;
- a completion with its messages: `{"model": ..., "messages": [...], "choices": [...], "usage": {...}}`;
- a flat line: `{"model": ..., "messages": [...], "output": "...", "prompt_tokens": ..., "completion_tokens": ...}`;
- LiteLLM's logging payload: `messages`, `response`, `prompt_tokens`, `response_cost`, `status`, `error_str`;
- a line of OpenAI's Batch API: `{"custom_id": ..., "response": {"status_code": ..., "body": {...}}, "error": ...}`.

Requests and replies may be those of Chat Completions, Responses or Messages. A call whose messages were not logged
counts as a query of its own. Logs are untrusted: fields of an unexpected type are ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from typing import Any

from rl_conductor.errors import ConfigError
from rl_conductor.models.prices import price_of, priced
from rl_conductor.types import Price, Usage

JsonObject = Mapping[str, Any]

DEFAULT_VENDORS = ("openai", "anthropic", "google", "openrouter")
"""Vendors whose price lists are searched for a model that is logged without its vendor."""
INPUT_FIELDS = ("prompt_tokens", "input_tokens")
OUTPUT_FIELDS = ("completion_tokens", "output_tokens")
COST_FIELDS = ("response_cost", "cost_usd", "cost", "spend")
REPLY_FIELDS = ("output_text", "output", "completion", "response", "content", "text")
REDACTED = "redacted-by-litellm"
"""LiteLLM's text in place of messages that it may not log."""


@dataclass(frozen=True)
class LoggedCall:
    """One call of a model, as a line of a log describes it."""

    model: str
    request: str
    """Digest of the whole conversation; equal for repeated requests."""
    query: str
    """Digest of the conversation up to the last user message; equal for all calls that work on one user query."""
    usage: Usage
    tool_calls: tuple[str, ...] = ()
    """Name and arguments of each tool call in the reply, as JSON."""
    has_reply: bool = True
    """Whether the reply has text or tool calls, or was not logged."""
    is_truncated: bool = False
    """Whether the reply reached a token limit."""
    error: str | None = None


def parse_line(line: str) -> LoggedCall:
    """Parses one line of a log.

    Raises:
        ConfigError: the line is not a logged call.
    """
    try:
        logged = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError("not JSON") from error
    objects = list(_nested_objects(logged))
    model = _first_text(objects, "model")
    if not model:
        raise ConfigError("no field 'model'")
    usage = _usage(objects, model)
    messages = _messages(objects)
    request = query = _digest(line)
    if messages:
        request = _digest(model, messages)
        query = _digest(_session(objects), messages[: _last_user_index(messages) + 1])
    tool_calls = tuple(_tool_calls(objects))
    has_reply = bool(tool_calls) or bool("".join(_reply_texts(objects)).strip())
    is_logged = bool(messages) or _first_value(objects, "choices", *REPLY_FIELDS) is not None
    error_text = _error(objects)
    return LoggedCall(
        model=model,
        request=request,
        query=query,
        usage=usage if error_text is None or usage.total_tokens else Usage(calls=1),
        tool_calls=tool_calls,
        has_reply=has_reply or not is_logged,
        is_truncated=bool({"length", "max_tokens", "incomplete"} & set(_finish_reasons(objects))),
        error=error_text,
    )


def _nested_objects(logged: object) -> Iterator[JsonObject]:
    """Yields the objects that may hold a field in order of precedence: the response, the request, the line itself."""
    if not isinstance(logged, dict):
        return
    for name in ("response", "request", "kwargs"):
        inner = logged.get(name)
        if isinstance(inner, dict):
            yield from (candidate for candidate in (inner.get("body"), inner) if isinstance(candidate, dict))
    yield logged


def _first_value(objects: Sequence[JsonObject], *names: str) -> Any:
    """Returns the first value that is not null, by the order of the objects and then of the names."""
    return next((each[name] for each in objects for name in names if each.get(name) is not None), None)


def _first_text(objects: Sequence[JsonObject], *names: str) -> str:
    value = _first_value(objects, *names)
    return value if isinstance(value, str) else ""


def _objects_in(value: object) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


# ------------------------------------------------------------------------------------------ requests


def _messages(objects: Sequence[JsonObject]) -> list[Any]:
    """Returns the messages of a request; none if they were not logged."""
    messages = _first_value(objects, "messages", "input", "prompt")
    if not isinstance(messages, list):
        messages = [{"role": "user", "content": messages}] if messages else []
    return [] if any(message.get("content") == REDACTED for message in _objects_in(messages)) else messages


def _last_user_index(messages: Sequence[Any]) -> int:
    indices = [index for index, message in enumerate(messages) if _is_from_user(message)]
    return indices[-1] if indices else len(messages) - 1


def _is_from_user(message: object) -> bool:
    """Returns whether the user wrote the message; the Messages API also sends tool results in the user's role."""
    if not isinstance(message, dict) or message.get("role") != "user":
        return False
    return all(part.get("type") != "tool_result" for part in _objects_in(message.get("content")))


def _session(objects: Sequence[JsonObject]) -> str:
    return _first_text(objects, "session_id", "conversation_id", "trace_id", "custom_id", "user")


def _digest(*values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


# ------------------------------------------------------------------------------------------- replies


def _replies(objects: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yields the messages, or output items, of a reply of any of the three APIs."""
    for each in objects:
        yield from (
            reply for choice in _objects_in(each.get("choices")) for reply in _objects_in([choice.get("message")])
        )
        output = each.get("output")
        yield from _objects_in(output if isinstance(output, list) else [output])
        if each.get("type") == "message":
            yield each


def _reply_texts(objects: Sequence[JsonObject]) -> Iterator[str]:
    yield _first_text(objects, *REPLY_FIELDS)
    for reply in _replies(objects):
        content = reply.get("content")
        yield content if isinstance(content, str) else ""
        for part in _objects_in(content):
            yield str(part.get("text") or "")


def _tool_calls(objects: Sequence[JsonObject]) -> Iterator[str]:
    for reply in _replies(objects):
        for part in (reply, *_objects_in(reply.get("tool_calls")), *_objects_in(reply.get("content"))):
            function = part.get("function") or part
            if part.get("type") in ("function", "function_call", "tool_use") and isinstance(function, dict):
                yield json.dumps([function.get("name"), function.get("arguments") or function.get("input")])


def _finish_reasons(objects: Sequence[JsonObject]) -> Iterator[str]:
    for each in objects:
        for candidate in (each, *_objects_in(each.get("choices"))):
            reason = candidate.get("finish_reason") or candidate.get("stop_reason") or candidate.get("status")
            if isinstance(reason, str):
                yield reason


def _error(objects: Sequence[JsonObject]) -> str | None:
    error = _first_value(objects, "error", "error_str", "error_message", "exception")
    if error:
        return str(error.get("message", error) if isinstance(error, dict) else error)
    status = _first_value(objects, "status_code", "http_status", "status")
    if isinstance(status, int):
        return f"status {status}" if status >= 400 else None
    return "failed" if status in ("failure", "failed", "error", "timeout") else None


# --------------------------------------------------------------------------------------------- usage


def _usage(objects: Sequence[JsonObject], model: str) -> Usage:
    counts = [each for each in (_first_value(objects, "usage"), *objects) if isinstance(each, dict)]
    details = _objects_in([_first_value(counts, "prompt_tokens_details", "input_tokens_details")])
    input_tokens = _count(counts, *INPUT_FIELDS)
    cached = _count(details, "cached_tokens") or _count(counts, "cache_read_input_tokens")
    usage = Usage(
        calls=1,
        input_tokens=max(input_tokens, cached),
        cached_tokens=cached,
        output_tokens=_count(counts, *OUTPUT_FIELDS),
    )
    cost = _dollars(_first_value(counts, *COST_FIELDS))
    return priced(usage, _price(model)) if cost is None else usage.model_copy(update={"cost": cost})


def _count(objects: Sequence[JsonObject], *names: str) -> int:
    value = _first_value(objects, *names)
    return max(value, 0) if isinstance(value, int) else 0


def _dollars(value: object) -> Decimal | None:
    if not isinstance(value, int | float) or not isfinite(value) or value < 0:
        return None
    return Decimal(str(value))


def _price(model: str) -> Price | None:
    vendor, _, name = model.rpartition("/")
    vendors = [vendor] if vendor else DEFAULT_VENDORS
    return next((price for each in vendors if (price := price_of(each, name)) is not None), None)
