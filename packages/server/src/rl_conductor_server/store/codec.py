"""What was kept as JSON, perhaps by another release: read, or refused in words."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from rl_conductor._internal.validation import first_field_error
from rl_conductor.errors import ConfigError
from rl_conductor.types import Value

V = TypeVar("V", bound=Value)


class OtherReleaseError(ConfigError):
    """Another release kept it, in a form that this one can't read."""


def read(kind: type[V], text: str, *, run: str) -> V:
    """The `kind` that `text` is, part of what is kept of `run`.

    Raises:
        OtherReleaseError: it is none that this release knows.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise OtherReleaseError(
            f"run {run!r} was kept by another release of rl-conductor, in a form that this one can't read "
            f"({first_field_error(error)}); read it with that release"
        ) from error
