"""Reads logs of model calls, one JSON object a line, as gateways and vendors write them. Knows nothing of reports.

These shapes are known, and any that mixes them:

- a pair: `{"request": {...}, "response": {...}}`, as proxies and HTTP hooks write;
- a completion with its question beside it: `{"model": ..., "messages": [...], "choices": [...], "usage": {...}}`;
- a flat line: `{"model": ..., "messages": [...], "output": "...", "prompt_tokens": ..., "completion_tokens": ...}`;
- LiteLLM's logging payload: `messages`, `response`, `prompt_tokens`, `response_cost`, `status`, `error_str`;
- a line of OpenAI's Batch API: `{"custom_id": ..., "response": {"status_code": ..., "body": {...}}, "error": ...}`.

Requests and replies may be those of Chat Completions, of Responses or of Messages. Logs are untrusted: what has not the
form that it should have is passed over.
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
from rl_conductor.models.base import priced
from rl_conductor.models.prices import price_of
from rl_conductor.types import Usage

Fields = Mapping[str, Any]

PROVIDERS = ("openai", "anthropic", "google", "openrouter")
"""Whose prices are looked up for a model whose vendor is not named."""
INPUT = ("prompt_tokens", "input_tokens")
OUTPUT = ("completion_tokens", "output_tokens")
COST = ("response_cost", "cost_usd", "cost", "spend")
REPLY = ("output_text", "output", "completion", "response", "content")


@dataclass(frozen=True)
class Logged:
    """One call as its log tells it."""

    model: str
    request: str
    """Digest of the whole conversation: two calls that share it asked the same."""
    query: str
    """Digest of the conversation up to the user's last turn: calls that share it worked at one question."""
    usage: Usage
    tool_calls: tuple[str, ...] = ()
    """What the reply calls, arguments included."""
    said: bool = True
    """Whether the reply has a text or calls a tool."""
    cut_off: bool = False
    """Whether it ended for want of tokens."""
    error: str | None = None


def read(line: str) -> Logged:
    """The call that a line tells of.

    Raises:
        ConfigError: it tells of none.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as wrong:
        raise ConfigError("not JSON") from wrong
    places = list(_places(found))
    model = _text(places, "model")
    if not model:
        raise ConfigError("no field 'model'")
    usage = _usage(places, model)
    messages = _messages(places)
    calls = tuple(_tool_calls(places))
    error = _error(places)
    return Logged(
        model=model,
        request=_digest(model, messages),
        query=_digest(_session(places), messages[: _last_user(messages) + 1]),
        usage=usage if error is None or usage.total_tokens else Usage(calls=1),
        tool_calls=calls,
        said=bool(calls) or bool("".join(_texts(places)).strip()),
        cut_off=bool({"length", "max_tokens", "incomplete"} & set(_endings(places))),
        error=error,
    )


def _places(found: object) -> Iterator[Fields]:
    """Where a field may stand, the reply before the request before the line itself."""
    if not isinstance(found, dict):
        return
    for name in ("response", "request", "kwargs"):
        inner = found.get(name)
        if isinstance(inner, dict):
            yield from (one for one in (inner.get("body"), inner) if isinstance(one, dict))
    yield found


def _first(places: Sequence[Fields], *names: str) -> Any:
    return next((place[name] for place in places for name in names if place.get(name) is not None), None)


def _text(places: Sequence[Fields], *names: str) -> str:
    found = _first(places, *names)
    return found if isinstance(found, str) else ""


def _parts(found: object) -> list[Fields]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


# ------------------------------------------------------------------------------------- the request


def _messages(places: Sequence[Fields]) -> list[Any]:
    found = _first(places, "messages", "input", "prompt")
    return found if isinstance(found, list) else [{"role": "user", "content": found}]


def _last_user(messages: Sequence[Any]) -> int:
    """Where the user last spoke; results of tools, which some APIs bring in the user's name, do not count."""
    spoken = [index for index, one in enumerate(messages) if _is_users(one)]
    return spoken[-1] if spoken else len(messages) - 1


def _is_users(message: object) -> bool:
    if not isinstance(message, dict) or message.get("role") != "user":
        return False
    return all(part.get("type") != "tool_result" for part in _parts(message.get("content")))


def _session(places: Sequence[Fields]) -> str:
    return _text(places, "session_id", "conversation_id", "trace_id", "custom_id", "user")


def _digest(*said: object) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


# --------------------------------------------------------------------------------------- the reply


def _replies(places: Sequence[Fields]) -> Iterator[Fields]:
    """The messages, or their parts, of a reply of any of the three APIs."""
    for place in places:
        yield from (one for choice in _parts(place.get("choices")) for one in _parts([choice.get("message")]))
        output = place.get("output")
        yield from _parts(output if isinstance(output, list) else [output])
        if place.get("type") == "message":
            yield place


def _texts(places: Sequence[Fields]) -> Iterator[str]:
    yield _text(places, *REPLY)
    for reply in _replies(places):
        content = reply.get("content")
        yield content if isinstance(content, str) else ""
        for part in _parts(content):
            yield str(part.get("text") or "")


def _tool_calls(places: Sequence[Fields]) -> Iterator[str]:
    for reply in _replies(places):
        for part in (reply, *_parts(reply.get("tool_calls")), *_parts(reply.get("content"))):
            called = part.get("function") or part
            if part.get("type") in ("function", "function_call", "tool_use") and isinstance(called, dict):
                yield json.dumps([called.get("name"), called.get("arguments") or called.get("input")])


def _endings(places: Sequence[Fields]) -> Iterator[str]:
    for place in places:
        for one in (place, *_parts(place.get("choices"))):
            ending = one.get("finish_reason") or one.get("stop_reason") or one.get("status")
            if isinstance(ending, str):
                yield ending


def _error(places: Sequence[Fields]) -> str | None:
    told = _first(places, "error", "error_str", "error_message", "exception")
    if told:
        told = told.get("message", told) if isinstance(told, dict) else told
        return str(told)
    status = _first(places, "status_code", "http_status", "status")
    if isinstance(status, int):
        return f"status {status}" if status >= 400 else None
    return "failed" if status in ("failure", "failed", "error", "timeout") else None


# ---------------------------------------------------------------------------------------- the cost


def _usage(places: Sequence[Fields], model: str) -> Usage:
    told = [one for one in (_first(places, "usage"), *places) if isinstance(one, dict)]
    details = [one for one in (_first(told, "prompt_tokens_details", "input_tokens_details"),) if isinstance(one, dict)]
    read = _count(told, *INPUT)
    cached = _count(details, "cached_tokens") or _count(told, "cache_read_input_tokens")
    usage = Usage(calls=1, input_tokens=max(read, cached), cached_tokens=cached, output_tokens=_count(told, *OUTPUT))
    cost = _money(_first(told, *COST))
    return priced(usage, _price(model)) if cost is None else usage.model_copy(update={"cost": cost})


def _count(places: Sequence[Fields], *names: str) -> int:
    found = _first(places, *names)
    return max(found, 0) if isinstance(found, int) else 0


def _money(found: object) -> Decimal | None:
    if not isinstance(found, int | float) or not isfinite(found) or found < 0:
        return None
    return Decimal(str(found))


def _price(model: str) -> Any:
    vendor, _, name = model.rpartition("/")
    asked = [vendor] if vendor else PROVIDERS
    return next((price for provider in asked if (price := price_of(provider, name)) is not None), None)
