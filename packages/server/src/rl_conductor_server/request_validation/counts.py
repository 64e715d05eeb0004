"""Limits the number of elements of a request, before models are built of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from pydantic_core import from_json

from rl_conductor_server.errors import invalid_request
from rl_conductor_server.settings import IntakeEntry

MAX_DEPTH = 64
"""Maximum nesting of a field's value. Vendors accept schemas of 5 to 10 nested objects, each of which takes about 4."""


def check_counts(body: bytes, limits: IntakeEntry) -> None:
    """Raises `ApiError` if a body has too many messages, tools, content parts or JSON values, or nests them too deeply.

    It counts before models are built. Each call of a run serialises the request, schemas included, on the event loop.
    """
    try:
        value = from_json(body)
    except ValueError:
        return  # the validation reports it
    if not isinstance(value, dict):
        return
    for field, limit in (("messages", limits.messages), ("input", limits.messages), ("tools", limits.tools)):
        items = value.get(field)
        if isinstance(items, list):
            _check(field, len(items), limit, "elements")
            if field != "tools":
                _check(field, sum(_count_parts(item) for item in items), limits.parts, "content parts")
    _check_values(value, limits.values)


def _check(field: str, count: int, limit: int, elements: str) -> None:
    if count > limit:
        raise invalid_request(f"{field} has {count:,} {elements}; at most {limit:,} are allowed", param=field)


def _check_values(body: dict[str, Any], limit: int) -> None:
    count = 0
    for field, value in body.items():
        level, depth = [value], 1
        while level:
            count += len(level)
            if count > limit:
                message = f"the body has more than {limit:,} JSON values; shorten its schemas, tools or tool calls"
                raise invalid_request(message, param=field)
            if any(isinstance(child, float) and not isfinite(child) for child in level):
                message = f"{field} has a number that is not finite, such as NaN or 1e400; JSON has no such number"
                raise invalid_request(message, param=field)
            if depth > MAX_DEPTH:
                raise invalid_request(f"{field} is nested more than {MAX_DEPTH} levels deep", param=field)
            level, depth = [child for parent in level for child in _children(parent)], depth + 1


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _count_parts(item: Any) -> int:
    """Counts the parts of a message, including those of tool results and tool calls within it."""
    if not isinstance(item, dict):
        return 0
    lists = [item.get(name) for name in ("content", "output", "tool_calls")]
    return sum(len(each) + sum(map(_count_parts, each)) for each in lists if isinstance(each, list))
