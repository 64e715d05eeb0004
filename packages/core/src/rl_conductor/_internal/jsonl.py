"""Files of JSON values, one a line or one in all. They are written whole, or what was there before stays."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from rl_conductor._internal.io import read_text, writing
from rl_conductor._internal.validation import first_problem
from rl_conductor.errors import ConfigError

V = TypeVar("V", bound=BaseModel)


def read_lines(path: Path, kind: type[V]) -> list[V]:
    """The values of a file.

    Raises:
        ConfigError: the file can't be read or a line is wrong; the message names it.
    """
    lines = read_text(path).split("\n")  # a text may hold what `splitlines` takes for an end
    return [
        _read(f"line {number} of {str(path)!r}", line, kind) for number, line in enumerate(lines, 1) if line.strip()
    ]


def write_lines(path: Path, values: Iterable[BaseModel]) -> None:
    """Write a value a line.

    Raises:
        ConfigError: the file can't be written.
    """
    _write(path, "".join(f"{value.model_dump_json()}\n" for value in values))


def read_value(path: Path, kind: type[V]) -> V:
    """The value of a file.

    Raises:
        ConfigError: the file can't be read, was cut short, or another release wrote it.
    """
    return _read(repr(str(path)), read_text(path), kind, cure=". It was cut short or is of another release: remove it")


def write_value(path: Path, value: BaseModel) -> None:
    """Write a value, for people to read, too.

    Raises:
        ConfigError: the file can't be written.
    """
    _write(path, value.model_dump_json(indent=2))


def _write(path: Path, text: str) -> None:
    half = path.with_name(f"{path.name}.half")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        half.write_text(text, encoding="utf-8")
        half.replace(path)


def _read(what: str, text: str, kind: type[V], *, cure: str = "") -> V:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{what} is wrong: {first_problem(error)}{cure}") from error
