"""Finds the fields of a JSON body at which pydantic reports errors."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

Path = tuple[str | int, ...]


def find_path(value: Any, loc: Path) -> Path | None:
    """Converts pydantic's location to a path in the body: names of union members are left out.

    Returns `None` if the last field of `loc` is not in the body.
    """
    if not loc:
        return ()
    key, rest = loc[0], loc[1:]
    if isinstance(value, dict):
        is_present = key in value
    else:
        is_present = isinstance(value, list) and isinstance(key, int) and key < len(value)
    if is_present:
        below = find_path(value[key], rest)
        if below is not None:
            return (key, *below)
    return find_path(value, rest) if rest else None


def existing_path(value: Any, loc: Path) -> Path:
    """Returns the longest path in the body that leads towards `loc`."""
    for end in range(len(loc), 0, -1):
        path = find_path(value, loc[:end])
        if path:
            return path
    return ()


def json_value(body: bytes) -> Any:
    """Returns the value of a body; `None` if it is not JSON."""
    try:
        return from_json(body)
    except ValueError:
        return None
