"""Reads TOML files into validated pydantic models."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from rl_conductor._internal.io import read_text
from rl_conductor._internal.validation import field_errors
from rl_conductor.errors import ConfigError

M = TypeVar("M", bound=BaseModel)


def read_toml(path: str | Path, kind: type[M], description: str) -> M:
    """Reads and validates a TOML file.

    Args:
        path: the file.
        kind: the model to validate its content against.
        description: the name of this kind of file in error messages, such as `pool file`.

    Raises:
        ConfigError: the file can't be read, is not TOML, or has an unknown or ill-typed key; the message names the key.
    """
    try:
        return kind.model_validate(tomllib.loads(read_text(path)))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{str(path)!r} is not TOML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{str(path)!r} is nested too deeply to be read") from None
    except ValidationError as error:
        raise ConfigError(
            f"the {description} {str(path)!r} is wrong: {'; '.join(map(str, field_errors(error, model=kind)))}"
        ) from error
