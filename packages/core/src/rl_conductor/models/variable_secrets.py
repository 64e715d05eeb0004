"""Finds the secrets in environment variables, by the variable's name and the look of its value. Pure.

A value such as a region or the name of a project is no secret, and results that mention it have to stay readable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from rl_conductor.models.redaction import is_secret_variable
from rl_conductor.models.urls import url_secrets

_FIELD = re.compile(r"(?P<name>[\w.-]+) *= *(?P<value>[^;&\s]+)")
"""A field of a connection string, such as `Password=...`."""
_TOKEN = re.compile(r"[A-Za-z0-9_+=~-]{16,}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_CHANGE = re.compile(r"(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[0-9]|(?<=[0-9])[A-Za-z]")
"""A character of another kind than the one before; the small letter after a capital is left out, as in `Report`."""
MIN_CHANGES = 0.2
"""Share of such characters from which on a text is taken for random. It is about 0.45 in random texts, and below 0.2 in
names, versions, dates and paths."""


def variable_secrets(name: str, value: str) -> tuple[str, ...]:
    """Returns the secrets in the value of an environment variable: all of it if the name says so, else parts."""
    return tuple(value.split()) if is_secret_variable(name) else tuple(dict.fromkeys(_secret_parts(value)))


def _secret_parts(value: str) -> Iterator[str]:
    """Yields passwords and keys in a URL or a connection string, and random texts."""
    with suppress(ValueError):  # no URL
        yield from url_secrets(value)
    yield from (field["value"] for field in _FIELD.finditer(value) if is_secret_variable(field["name"]))
    texts = [value] if _BASE64.fullmatch(value) else _TOKEN.findall(value)  # a slash in other values separates names
    yield from (text for text in texts if _looks_random(text))


def _looks_random(text: str) -> bool:
    """Returns whether a text is a key rather than words; the UUID of a project or tenant is neither."""
    has_digit = re.search(r"\d", text) is not None
    is_mixed = len(_CHANGE.findall(text)) >= MIN_CHANGES * len(text)
    return has_digit and is_mixed and not _UUID.fullmatch(text)
