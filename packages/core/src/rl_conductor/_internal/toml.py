"""Reads TOML files into validated pydantic models."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails

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
        return _validate(tomllib.loads(read_text(path)), kind)
    except ValidationError as error:
        raise ConfigError(
            f"the {description} {str(path)!r} is wrong: {'; '.join(map(str, field_errors(error, model=kind)))}"
        ) from error
    except ValueError as error:  # beside `TOMLDecodeError`, for an integer of thousands of digits
        raise ConfigError(f"{str(path)!r} is not TOML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{str(path)!r} is nested too deeply to be read") from None


def _validate(content: dict[str, Any], kind: type[M]) -> M:
    """Validates the content of a file. Unlike pydantic alone it takes no boolean for a number, as in `port = true`."""
    settings = kind.model_validate(content)
    if errors := list(_booleans_as_numbers(content, settings)):
        raise ValidationError.from_exception_data(kind.__name__, errors)
    return settings


def _booleans_as_numbers(content: Any, settings: Any, *path: str | int) -> Iterator[InitErrorDetails]:
    """Yields an error for each boolean in `content` that is a number in `settings`."""
    if isinstance(content, bool) and isinstance(settings, int | float) and not isinstance(settings, bool):
        yield InitErrorDetails(type="int_type" if isinstance(settings, int) else "float_type", loc=path, input=content)
    elif isinstance(content, dict):
        for name, value in content.items():
            setting = settings.get(name) if isinstance(settings, Mapping) else getattr(settings, name, None)
            yield from _booleans_as_numbers(value, setting, *path, name)
    elif isinstance(content, list) and isinstance(settings, Sequence):
        for index, (value, setting) in enumerate(zip(content, settings, strict=False)):
            yield from _booleans_as_numbers(value, setting, *path, index)
