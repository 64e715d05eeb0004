"""Formats pydantic validation errors as `path: message`."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import ValidationError


class FieldError(NamedTuple):
    """One invalid field of a value that pydantic rejected."""

    path: str
    """The path of the field, such as `workers.ada.model`; empty when the error concerns the value itself."""
    message: str
    value: Any
    """The rejected input. It may be long or secret, so `str` leaves it out."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def field_errors(error: ValidationError, *, below: int = 0) -> list[FieldError]:
    """Lists every invalid field, in pydantic's order.

    Args:
        error: the exception that pydantic raised.
        below: the number of leading names to drop from each path.
    """
    details = error.errors(include_url=False, include_context=False)
    return [
        FieldError(".".join(map(str, detail["loc"][below:])), clean_message(detail["msg"]), detail["input"])
        for detail in details
    ]


def first_field_error(error: ValidationError) -> FieldError:
    """Returns the first invalid field, for error messages of one line."""
    return field_errors(error)[0]


def clean_message(text: str) -> str:
    """Removes the prefix that pydantic adds to the messages of validators."""
    return text.removeprefix("Value error, ")
