"""Deterministic sampling by hash, so that all processes, retries and later turns of a conversation decide the same."""

from __future__ import annotations

import hashlib

from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.store.models import end_users


def sample_unit(account: str, parsed: ParsedRequest) -> str:
    """Identifies the unit that an experiment assigns to an arm: the end user, or the conversation if none is named.

    A conversation is identified by its first user message.
    """
    if users := end_users(parsed.labels):
        return f"{account} user {users[0]}"
    first = next((turn.model_dump_json() for turn in parsed.request.messages if turn.role == "user"), "")
    return f"{account} conversation {first}"


def hash_to_fraction(text: str) -> float:
    """Maps a text to a number from 0 to 1, uniformly distributed over all texts."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
