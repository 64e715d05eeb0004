"""Formats pydantic validation errors as `path: message`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

TABLE_ERRORS = ("model_type", "model_attributes_type", "dataclass_type")
"""Pydantic's names of the error that a value is not an object; its messages contain names of classes."""


class FieldError(NamedTuple):
    """One invalid field of a value that pydantic rejected."""

    path: str
    """The path of the field, such as `workers.ada.model`; empty when the error concerns the value itself."""
    message: str
    value: Any
    """The rejected input. It may be long or secret, so `str` leaves it out."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def field_errors(error: ValidationError, *, below: int = 0, model: type[BaseModel] | None = None) -> list[FieldError]:
    """Lists every invalid field, in pydantic's order.

    Args:
        error: the exception that pydantic raised.
        below: the number of leading names to drop from each path.
        model: the model that rejected the value. With it, the message about an unknown field names the known ones.
    """
    fields = []
    for detail in error.errors(include_url=False, include_context=False):
        path, message = detail["loc"], clean_message(detail["msg"])
        if detail["type"] == "extra_forbidden":
            message = f"there is no such setting{_suggestion(model, path)}"
        elif detail["type"] in TABLE_ERRORS:
            message = "write a table of settings"
        fields.append(FieldError(".".join(map(str, path[below:])), message, detail["input"]))
    return fields


def first_field_error(error: ValidationError) -> FieldError:
    """Returns the first invalid field, for error messages of one line."""
    return field_errors(error)[0]


def clean_message(text: str) -> str:
    """Removes the prefix that pydantic adds to the messages of validators."""
    return text.removeprefix("Value error, ")


def _suggestion(model: type[BaseModel] | None, path: Sequence[int | str]) -> str:
    """Returns the known field that resembles the unknown one at `path`, or else all fields beside it."""
    names = [] if model is None else _field_names(model, path[:-1])
    if not names:
        return ""
    from difflib import get_close_matches  # noqa: PLC0415  only errors need it

    similar = get_close_matches(str(path[-1]), names, 1)
    return f"; did you mean {similar[0]!r}?" if similar else f"; write one of {', '.join(names)}"


def _field_names(annotation: Any, path: Sequence[int | str]) -> list[str]:
    """Returns the names of the fields of the model at `path` below a type; none if there is no such model."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        if not path:
            return list(fields)
        return _field_names(fields[str(path[0])].annotation, path[1:]) if path[0] in fields else []
    arguments = [argument for argument in get_args(annotation) if argument is not Ellipsis]
    is_container = isinstance(getattr(annotation, "__origin__", None), type)
    below = path[1:] if is_container else path
    return next((names for argument in arguments if (names := _field_names(argument, below))), [])
