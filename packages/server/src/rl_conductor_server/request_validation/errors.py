"""Formats the errors of pydantic as those of the APIs, with the path of the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rl_conductor._internal.validation import clean_message
from rl_conductor_server.errors import THREAD_UNSUPPORTED, ApiError, invalid_request
from rl_conductor_server.request_validation.paths import existing_path, json_value

MAX_ERRORS = 2_000
"""Maximum number of errors of a body that are examined, which takes up to 0.1 ms each."""
UNKNOWN = "extra_forbidden"
"""Pydantic's type of the error of an unknown field."""
JSON_TYPES = (
    (re.compile(r"a valid (dictionary|mapping)( or .*)?|an? (valid dictionary or )?instance of .*"), "an object"),
    (re.compile(r"a valid (tuple|list|array|set|frozenset)"), "an array"),
    (re.compile(r"a valid (?=[aeiou])"), "an "),
    (re.compile(r"a valid "), "a "),
    (re.compile(r", unable to .*$"), ""),
)
"""Replaces Python's types in error messages by those of JSON, and leaves out how they are parsed."""
SENTENCES = {
    UNKNOWN: "is an unknown parameter; leave it out",
    "missing": "is missing",
    "too_long": "may have at most {max_length} {unit}",
    "too_short": "needs {min_length} or more entries",
    "union_tag_invalid": "has the unsupported {discriminator} {tag!r}; write one of {expected_tags}",
    "union_tag_not_found": "has no {discriminator}; add it",
}
"""The rest of the sentence after the field's name, by pydantic's type of error."""
INTERNAL_TAG = re.compile(r", '_\w+'|'_\w+', ")
"""A tag of several types in a list of tags; it is not a type itself."""
CODES = {
    UNKNOWN: "unknown_parameter",
    "missing": "missing_required_parameter",
    THREAD_UNSUPPORTED: THREAD_UNSUPPORTED,
}
"""Codes of errors other than `invalid_value`."""


def invalid_body(error: ValidationError, body: bytes) -> ApiError:
    """Creates the error for a body, from the deepest of pydantic's errors."""
    if error.error_count() > MAX_ERRORS:
        return invalid_request(
            f"the body has more than {MAX_ERRORS:,} fields that are unknown or not valid; send only those of the API"
        )
    details = error.errors(include_input=False, include_url=False)
    deepest = max(details, key=lambda detail: len(detail["loc"]))  # in a union, the member that matched best
    if deepest["type"] == "json_invalid":
        return invalid_request(f"the body is not JSON: {deepest['ctx']['error']}", code="invalid_json")
    is_missing = deepest["type"] == "missing"
    loc = deepest["loc"][:-1] if is_missing else deepest["loc"]
    path = existing_path(json_value(body), loc)
    if is_missing:
        path = (*path, deepest["loc"][-1])
    context = deepest.get("ctx", {})
    param = ".".join(map(str, path)) or context.get("param")
    message, code = _message(deepest["type"], deepest["msg"], context)
    return invalid_request(_sentence(param, message), param=param, code=code)


def invalid_parameter(detail: Mapping[str, Any]) -> ApiError:
    """Creates the error for a parameter of the path or the query, from pydantic's details."""
    name = str(detail["loc"][-1])
    message, code = _message(detail["type"], detail["msg"], detail.get("ctx", {}))
    return invalid_request(_sentence(name, message), param=name, code=code)


def _sentence(param: str | None, message: str) -> str:
    if param is None:
        return f"the body {message}" if message.startswith(("must ", "needs ")) else message
    return f"{param}: {message}" if message.startswith("write ") else f"{param} {message}"


def _message(kind: str, text: str, context: dict[str, Any]) -> tuple[str, str]:
    """Returns the part of the sentence after the field's name, and the error code."""
    discriminator = str(context.get("discriminator", "")).strip("'")
    if kind in SENTENCES:
        expected = INTERNAL_TAG.sub("", str(context.get("expected_tags", "")))
        words = context | {
            "expected_tags": expected,
            "discriminator": discriminator if discriminator.isidentifier() else "type",
            "unit": "characters" if context.get("field_type") == "Value" else "entries",  # of `Text`, as pydantic says
        }
        return SENTENCES[kind].format(**words), CODES.get(kind, "invalid_value")
    if kind == "value_error":
        return clean_message(text), "invalid_value"
    for pattern, replacement in JSON_TYPES:
        text = pattern.sub(replacement, text)
    return re.sub(r"^(Input|String|Decimal input) should", "must", text), CODES.get(kind, "invalid_value")
