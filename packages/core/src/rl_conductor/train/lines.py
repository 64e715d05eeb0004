"""Files of one JSON value a line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from rl_conductor.errors import ConfigError
from rl_conductor.types import Value

V = TypeVar("V", bound=Value)


def read_lines(path: Path, kind: type[V]) -> list[V]:
    """The values of a file.

    Raises:
        ConfigError: the file can't be read or a line is wrong; the message names it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {str(path)!r}: {error}") from error
    return [_read(path, number, line, kind) for number, line in enumerate(lines, start=1) if line.strip()]


def write_lines(path: Path, values: Iterable[Value]) -> None:
    """Write a file whole, or leave the one that was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.half")
    half.write_text("".join(f"{value.model_dump_json()}\n" for value in values), encoding="utf-8")
    half.replace(path)


def _read(path: Path, number: int, line: str, kind: type[V]) -> V:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise ConfigError(f"line {number} of {str(path)!r} is wrong: {where}: {first['msg']}") from error
