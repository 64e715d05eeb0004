"""Limits the memory that all requests, and the answers that clients have not read yet, take together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rl_conductor_server.errors import ApiError
from rl_conductor_server.transport.key_share import limit_of_key, release

SHORT_BYTES = 64 * 2**10
"""Size up to which a key may have one request even if those of other keys take all room."""
RETRY_AFTER = 2.0
"""Seconds after which a request may be repeated that found no room."""


class BodyBudget:
    """The size of all bodies in progress, of requests and of their answers; each API key may take a part of it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._by_key = Counter[str]()

    @property
    def reserved(self) -> int:
        """The size of all bodies in progress."""
        return self._by_key.total()

    def key_limit(self, *, is_shared: bool) -> int:
        """Returns the size that the requests of one key may take together, whether or not there are others."""
        return limit_of_key(self._max_bytes, is_shared=is_shared)

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
        mine, limit = 0, self.key_limit(is_shared=is_shared)

        def add(more: int) -> None:
            nonlocal mine
            if self._by_key[key] > mine or mine + more > SHORT_BYTES:
                total = sum(min(each, limit) for each in self._by_key.values())  # see `hold`
                _check_room(total, more, self._max_bytes, mine=mine)
                _check_room(self._by_key[key], more, limit, mine=mine)
            self._by_key[key] += more
            mine += more

        try:
            add(size)
            yield add
        finally:
            release(self._by_key, key, mine)

    @contextmanager
    def hold(self, size: int, *, key: str) -> Iterator[None]:
        """Counts an answer for the duration of the block; it is paid for, so it is never refused.

        With it, a key may have more than its part. Then its next requests are refused, not those of other keys.
        """
        self._by_key[key] += size
        try:
            yield
        finally:
            release(self._by_key, key, size)


def _check_room(reserved: int, more: int, limit: int, *, mine: int) -> None:
    if reserved > mine and reserved + more > limit:
        message = f"requests and answers in progress take {reserved:,} of {limit:,} bytes; try again later"
        raise ApiError(message, status=503, code="busy", retry_after=RETRY_AFTER)
