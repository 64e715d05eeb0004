"""Formats pydantic validation errors as `path: message`; messages name a valid alternative."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

UNKNOWN_FIELD, MISSING_FIELD, TOO_SHORT = "extra_forbidden", "missing", "too_short"
"""Pydantic's names of errors."""
FORM_ERRORS = ("string_type", "string_pattern_mismatch", "date_")
"""Beginnings of pydantic's names of errors about the form of a text or date, which an example explains best."""
KEY = "[key]"
"""The end of pydantic's path of a wrong key of a table, after the key itself."""
ADVICE = "advice"
"""The name in the context of an explained error for its message."""
Expectation = Callable[[Sequence[int | str], str], str | None]
KINDS = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dataclass_type"), "write a table or a dict of settings"),
    **dict.fromkeys(("dict_type", "mapping_type"), "write a table"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type"), "write a list"),
    "path_type": "write a path as a string",
}
"""Messages for values of the wrong kind; pydantic's own contain names of Python's types."""
EXPECTATIONS = (
    (r"(Input|String|Decimal input) should be an integer, float.*|Input should be a valid decimal", "write a number"),
    (r"Input should be a valid (boolean|bool).*", "write true or false"),
    (r"Input should be (greater|less)", r"write a number \1"),
    (r"Input should be a valid ([aeiou])", r"write an \1"),
    (r"Input should be a valid ", "write a "),
    (r"Input should be ", "write "),
    (r"(String|Decimal input|Value|List|Tuple|Set|Frozenset|Dictionary) should have ", "write "),
    (r"String should match pattern ", "write text that matches the pattern "),
    (r"Input tag (.*) found using '(\w+)' does not match any of the expected tags:", r"no \2 is \1; write one of"),
    (r"Unable to extract tag using discriminator '(\w+)'", r"\1 is missing"),
)
"""Beginnings of pydantic's messages, and how ours begin instead."""
DETAILS = re.compile(r", (unable to .*|got .*)$| after validation, not \d+$")
"""Ends of pydantic's messages that repeat what was given."""


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
        model: the model that rejected the value. With it, the messages about unknown and missing fields, and about
            texts and dates of the wrong form, say what to write, as far as the model does: with `examples` of a field,
            with the `description` of a table's keys, and with a class variable `unknown_fields`.
    """
    return [
        FieldError(
            ".".join(str(name) for name in detail["loc"][below:] if name != KEY),
            _advice(detail, model),
            detail["input"],
        )
        for detail in _details(error)
    ]


def explained(error: ValidationError, model: type[BaseModel], *, expectation: Expectation) -> ValidationError:
    """Returns the error with messages that name the correction.

    Args:
        error: the exception that pydantic raised.
        model: the model that rejected the value.
        expectation: says what to write at a path, given pydantic's name of the error; `None` leaves the general advice.
    """
    details: list[InitErrorDetails] = []
    for detail in _details(error):
        advice = expectation(detail["loc"], detail["type"]) or _advice(detail, model)
        kind = PydanticCustomError(detail["type"], f"{{{ADVICE}}}", {**detail.get("ctx", {}), ADVICE: advice})
        details.append({"type": kind, "loc": detail["loc"], "input": detail["input"]})
    return ValidationError.from_exception_data(model.__name__, details)


def first_field_error(error: ValidationError) -> FieldError:
    """Returns the first invalid field, for error messages of one line."""
    return field_errors(error)[0]


def clean_message(text: str) -> str:
    """Removes the prefix that pydantic adds to the messages of validators."""
    return text.removeprefix("Value error, ")


def _details(error: ValidationError) -> list[ErrorDetails]:
    """Returns pydantic's errors, without those about the length of a list that only lacks its invalid entries."""
    details = error.errors(include_url=False)
    paths = [detail["loc"] for detail in details]

    def has_invalid_entries(path: tuple[int | str, ...]) -> bool:
        return any(len(other) > len(path) and other[: len(path)] == path for other in paths)

    return [detail for detail in details if detail["type"] != TOO_SHORT or not has_invalid_entries(detail["loc"])]


def _advice(detail: ErrorDetails, model: type[BaseModel] | None) -> str:
    """Returns the message for one of pydantic's errors; the one of `explained`, if it was already explained."""
    advice: str | None = detail.get("ctx", {}).get(ADVICE)
    return advice or _message(detail["type"], detail["msg"], detail["loc"], model)


def _message(kind: str, text: str, path: Sequence[int | str], model: type[BaseModel] | None) -> str:
    """Returns the advice for pydantic's type of an error and its message."""
    if kind == UNKNOWN_FIELD:
        return _about_unknown(str(path[-1]), _find_model(model, path[:-1]))
    if kind in KINDS:
        return KINDS[kind]
    example = _find_example(model, path)
    if kind == MISSING_FIELD:
        return f"missing; write {example}" if example else "missing"
    if kind.startswith(FORM_ERRORS) and example:
        return f"write {example}"
    text = DETAILS.sub("", clean_message(text))
    for pattern, replacement in EXPECTATIONS:
        text, count = re.subn(f"^{pattern}", replacement, text)
        if count:
            break
    return text


def _about_unknown(name: str, model: type[BaseModel] | None) -> str:
    """Suggests a name instead of an unknown field: the one that resembles it, or else one of all."""
    if model is None:
        return "there is no such setting"
    hints: Mapping[str, str] = getattr(model, "unknown_fields", {})
    if name in hints:
        return hints[name]
    from difflib import get_close_matches  # noqa: PLC0415  only errors need it

    fields = list(model.model_fields)
    similar = get_close_matches(name, fields, 1)
    end = f"did you mean {similar[0]!r}?" if similar else f"write one of {', '.join(fields)}"
    return f"there is no such setting; {end}"


def _find_example(model: type[BaseModel] | None, path: Sequence[int | str]) -> str | None:
    """Returns an example of the value at a path: the field's, or the description of the keys of a table."""
    if model is None or not path:
        return None
    is_key = path[-1] == KEY
    *above, name = path[:-2] if is_key else path
    owner = _find_model(model, above)
    field = owner.model_fields.get(str(name)) if owner is not None else None
    if field is None:
        return None
    if is_key:
        return FieldInfo.from_annotation(get_args(field.annotation)[0]).description
    return field.examples[0] if field.examples else None


def _find_model(annotation: Any, path: Sequence[int | str]) -> type[BaseModel] | None:
    """Returns the model at `path` below a type; `None` if there is no such model."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        if not path:
            return annotation
        return _find_model(fields[str(path[0])].annotation, path[1:]) if path[0] in fields else None
    arguments = [argument for argument in get_args(annotation) if argument is not Ellipsis]
    is_container = isinstance(getattr(annotation, "__origin__", None), type)
    below = path[1:] if is_container else path
    return next((model for argument in arguments if (model := _find_model(argument, below))), None)
