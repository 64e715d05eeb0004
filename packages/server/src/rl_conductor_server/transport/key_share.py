"""The part of a server's capacity that one API key may take if there are others."""

from __future__ import annotations

from collections import Counter

KEY_SHARE = 2 / 3
"""Maximum share of one key in the memory for requests, the requests in progress and the concurrent runs."""


def limit_of_key(capacity: float, *, is_shared: bool) -> int:
    """Returns the part of a capacity that one API key may take: all of it unless several keys share it."""
    return int(capacity * KEY_SHARE) if is_shared else int(capacity)


def release(counts: Counter[str], key: str, number: int = 1) -> None:
    """Subtracts from the count of a key, and forgets the key at 0."""
    counts[key] -= number
    if not counts[key]:
        del counts[key]
