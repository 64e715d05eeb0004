"""Atomic reading and writing of JSON and JSON Lines files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from rl_conductor._internal.io import read_text, write_text, writing_errors
from rl_conductor._internal.validation import first_field_error
from rl_conductor.errors import ConfigError

V = TypeVar("V", bound=BaseModel)


def read_lines(path: Path, kind: type[V]) -> list[V]:
    """Reads a JSON Lines file; blank lines are skipped.

    Raises:
        ConfigError: the file can't be read or a line is invalid; the message names the line.
    """
    lines = read_text(path).split("\n")  # JSON strings may contain characters that `splitlines` treats as line ends
    return [
        _read(f"line {number} of {str(path)!r}", line, kind) for number, line in enumerate(lines, 1) if line.strip()
    ]


def write_lines(path: Path, values: Iterable[BaseModel]) -> None:
    """Writes one JSON value per line.

    Raises:
        ConfigError: the file can't be written.
    """
    _write(path, "".join(f"{value.model_dump_json()}\n" for value in values))


def read_complete_lines(path: Path) -> list[bytes]:
    """Reads the lines of a file that is appended to, and truncates a partially written last one.

    The file and its folder are created if they don't exist.

    Raises:
        ConfigError: the file can't be read or written.
    """
    with writing_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(0)
            complete_lines, _, partial_line = file.read().rpartition(b"\n")
            if partial_line:
                file.truncate(len(complete_lines) + 1 if complete_lines else 0)
    return complete_lines.splitlines()


def read_value(path: Path, kind: type[V], *, cure: str = "remove it") -> V:
    """Reads a file that contains one JSON value; the error about an invalid one ends with the advice `cure`.

    Raises:
        ConfigError: the file can't be read, is truncated, or was written by another release.
    """
    return _read(repr(str(path)), read_text(path), kind, hint=f". It was cut short or is of another release: {cure}")


def write_value(path: Path, value: BaseModel) -> None:
    """Writes one JSON value, indented.

    Raises:
        ConfigError: the file can't be written.
    """
    _write(path, value.model_dump_json(indent=2))


def _write(path: Path, text: str) -> None:
    with writing_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def _read(source: str, text: str, kind: type[V], *, hint: str = "") -> V:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{source} is wrong: {first_field_error(error)}{hint}") from error
