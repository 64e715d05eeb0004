"""Limits the number of elements of a request, and the memory that all requests take together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic_core import from_json

from rl_conductor_server.errors import ApiError, invalid_request
from rl_conductor_server.settings import IntakeEntry

RETRY_AFTER = 2.0
"""Seconds after which a request may be repeated that found no room."""


class BodyBudget:
    """The size of all request bodies in progress."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._reserved = 0

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Reserves room for a body of `size` bytes for the duration of the block; a single body always has room.

        Raises:
            ApiError: the requests in progress leave too little room.
        """
        if self._reserved and self._reserved + size > self._max_bytes:
            message = f"requests in progress take {self._reserved:,} of {self._max_bytes:,} bytes; try again later"
            raise ApiError(message, status=503, code="busy", retry_after=RETRY_AFTER)
        self._reserved += size
        try:
            yield
        finally:
            self._reserved -= size


def check_counts(body: bytes, limits: IntakeEntry) -> None:
    """Raises `ApiError` if a body has too many messages, tools or content parts; counts without building objects."""
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


def _check(field: str, count: int, limit: int, elements: str) -> None:
    if count > limit:
        raise invalid_request(f"{field} has {count:,} {elements}; at most {limit:,} are allowed", param=field)


def _count_parts(item: Any) -> int:
    """Counts the parts of a message, including those of tool results and tool calls within it."""
    if not isinstance(item, dict):
        return 0
    lists = [item.get(name) for name in ("content", "output", "tool_calls")]
    return sum(len(each) + sum(map(_count_parts, each)) for each in lists if isinstance(each, list))
