"""Limits the number of elements of a request, and the memory that all requests take together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any

from pydantic_core import from_json

from rl_conductor_server.errors import ApiError, invalid_request
from rl_conductor_server.settings import IntakeEntry

KEY_SHARE = 2 / 3
"""The part of the memory for requests that one API key may take if there are others."""
SHORT_BYTES = 64 * 2**10
"""Size up to which a key may have one request whatever those of other keys take."""
MAX_DEPTH = 64
"""Maximum nesting of a field's value. Vendors accept schemas of 5 to 10 nested objects, each of which takes about 4."""
RETRY_AFTER = 2.0
"""Seconds after which a request may be repeated that found no room."""


class BodyBudget:
    """The size of all request bodies in progress, of which each API key may take a part."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._by_key = Counter[str]()

    @property
    def reserved(self) -> int:
        """The size of all requests in progress."""
        return self._by_key.total()

    def key_limit(self, *, is_shared: bool) -> int:
        """Returns the size that the requests of one key may take together, whether or not there are others."""
        return int(self._max_bytes * KEY_SHARE) if is_shared else self._max_bytes

    @contextmanager
    def reserve(self, size: int, *, key: str, is_shared: bool = False) -> Iterator[Callable[[int], None]]:
        """Reserves room for a body of `size` bytes for the duration of the block.

        A single body always has room, and so has a short one of a key that has no other: two keys that take everything
        do not lock the others out.

        Args:
            size: what is reserved at first; the block gets a function that reserves more.
            key: the name of the API key.
            is_shared: limits the key to `KEY_SHARE`, because there are others.

        Raises:
            ApiError: the requests in progress leave too little room.
        """
        mine = 0

        def add(more: int) -> None:
            nonlocal mine
            if self._by_key[key] > mine or mine + more > SHORT_BYTES:
                _check_room(self.reserved, more, self._max_bytes, mine=mine)
                _check_room(self._by_key[key], more, self.key_limit(is_shared=is_shared), mine=mine)
            self._by_key[key] += more
            mine += more

        try:
            add(size)
            yield add
        finally:
            self._by_key[key] -= mine
            if not self._by_key[key]:
                del self._by_key[key]


def _check_room(reserved: int, more: int, limit: int, *, mine: int) -> None:
    if reserved > mine and reserved + more > limit:
        message = f"requests in progress take {reserved:,} of {limit:,} bytes; try again later"
        raise ApiError(message, status=503, code="busy", retry_after=RETRY_AFTER)


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
