"""Generates and hashes the secrets of API keys and administrators."""

from __future__ import annotations

import hashlib
import re
import secrets

PREFIX = "rlc_"
GENERATED = re.compile(rf"{PREFIX}[\w-]{{43}}", re.ASCII)
"""The keys of `generate_key`."""


def generate_key() -> tuple[str, str]:
    """Generates a key and its SHA-256; it has 256 random bits, so a plain hash is safe to store."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hash_key(key)


def hash_key(key: str) -> str:
    """Returns the SHA-256 of a key, in hex."""
    return hashlib.sha256(key.encode()).hexdigest()
