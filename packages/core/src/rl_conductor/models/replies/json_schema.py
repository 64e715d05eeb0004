"""Validates a reply by the JSON schema of its caller.

A caller chooses the schema, so the work is bounded: keywords with regular expressions are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import UndefinedTypeCheck, UnknownType, ValidationError, best_match
from jsonschema.validators import create
from referencing import Registry
from referencing.exceptions import Unresolvable

from rl_conductor.models.vendor_errors import MALFORMED_REPLY_ERRORS

KEYWORDS = (
    *("$ref", "type", "enum", "const", "anyOf", "oneOf", "allOf", "not"),
    *("properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"),
)
MAX_STEPS = 10_000
"""Maximum number of keywords that are applied to one reply, which takes 0.5 s at most; the rest is not checked."""
MAX_MESSAGE_CHARS = 200
"""Maximum characters of a violation, which may quote the reply."""

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]
_steps: ContextVar[list[None]] = ContextVar("steps")


class _TooManyStepsError(Exception):
    """The schema has too many keywords for this reply; references may multiply them."""


def schema_violation(value: Any, schema: dict[str, Any]) -> str | None:
    """Returns how `value` violates `schema`; `None` if it doesn't, or the schema is not one that can be checked."""
    token = _steps.set([])
    try:
        error = best_match(_Validator(schema, registry=Registry()).iter_errors(value))
    except (*MALFORMED_REPLY_ERRORS, UndefinedTypeCheck, UnknownType, Unresolvable, _TooManyStepsError):
        return None
    finally:
        _steps.reset(token)
    return error and f"{error.message[:MAX_MESSAGE_CHARS]} (at {error.json_path})"


def _bounded(keyword: Keyword) -> Keyword:
    def bounded(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError] | None:
        steps = _steps.get()
        steps.append(None)
        if len(steps) > MAX_STEPS:
            raise _TooManyStepsError
        return None if "patternProperties" in schema else keyword(validator, value, instance, schema)

    return bounded


_Validator = create(
    meta_schema=Draft202012Validator.META_SCHEMA,
    validators={name: _bounded(Draft202012Validator.VALIDATORS[name]) for name in KEYWORDS},
    type_checker=Draft202012Validator.TYPE_CHECKER,
)
