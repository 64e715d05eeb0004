"""A TOML file as a checked value; a mistake in it is told by its key."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from rl_conductor._internal.io import read_text
from rl_conductor._internal.validation import problems
from rl_conductor.errors import ConfigError

M = TypeVar("M", bound=BaseModel)


def read_toml(path: str | Path, kind: type[M], what: str) -> M:
    """The content of a file.

    Args:
        path: the file.
        kind: what it must hold.
        what: what to call it in errors, such as `pool file`.

    Raises:
        ConfigError: it can't be read, is not TOML, or has an unknown or ill-typed key; the message names it.
    """
    try:
        return kind.model_validate(tomllib.loads(read_text(path)))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{str(path)!r} is not TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"the {what} {str(path)!r} is wrong: {'; '.join(map(str, problems(error)))}") from error
