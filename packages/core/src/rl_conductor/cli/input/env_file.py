"""Loads environment variables from a file that the user names."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rl_conductor._internal.io import read_text
from rl_conductor.errors import ConfigError

if TYPE_CHECKING:
    from dotenv.parser import Original


def load_env_file(path: Path) -> None:
    """Sets the variables of a `.env` file, except those that the environment already has.

    Raises:
        ConfigError: the file can't be read, or a line is not `NAME=VALUE`. The message never contains a value.
    """
    # Imported here because it is only needed for this option.
    from dotenv import load_dotenv  # noqa: PLC0415
    from dotenv.parser import parse_stream  # noqa: PLC0415

    text = read_text(path)
    invalid = [
        _line_of(binding.original)
        for binding in parse_stream(StringIO(text))
        if binding.error or (binding.key is not None and binding.value is None)
    ]
    if invalid:
        raise ConfigError(
            f"{str(path)!r}, line {invalid[0]}: write NAME=VALUE, with a value of several words in quotes"
        )
    load_dotenv(stream=StringIO(text))


def _line_of(original: Original) -> int:
    """Returns the line number of a statement, which may begin with empty lines."""
    start = original.string[: len(original.string) - len(original.string.lstrip())]
    return original.line + start.count("\n")
