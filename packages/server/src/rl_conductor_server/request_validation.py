"""Validates request bodies; ignores fields without effect here, and formats errors with the path of the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError, from_json, to_json

from rl_conductor._internal.validation import clean_message
from rl_conductor_server.errors import ApiError, invalid_request
from rl_conductor_server.protocol import ParsedRequest

B = TypeVar("B", bound="Body")
Path = tuple[str | int, ...]

MAX_IGNORED = 32
"""Maximum number of ignored fields that a response header names."""
MAX_NAME_CHARS = 64
MAX_ERRORS = 2_000
"""Maximum number of errors of a body that are examined, which takes up to 0.1 ms each."""
MAX_PASSES = 4
"""Maximum number of validations of one body; fields of a union may appear only after others were removed."""
IGNORABLE, IGNORED_TOOL, UNSUPPORTED, UNKNOWN = "ignorable", "ignored_tool", "unsupported", "extra_forbidden"
REASON = "is not supported, because models of several vendors answer together; leave it out"
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
    "too_long": "may have at most {max_length} entries",
    "too_short": "needs at least {min_length} entries",
    "union_tag_invalid": "has the unsupported {discriminator} {tag!r}; write one of {expected_tags}",
    "union_tag_not_found": "has no {discriminator}; add it",
}
"""What follows the field's name, by pydantic's type of error."""
INTERNAL_TAG = re.compile(r", '_\w+'|'_\w+', ")
"""A tag of several types in a list of tags; it is not a type itself."""
CODES = {UNKNOWN: "unknown_parameter", "missing": "missing_required_parameter"}
"""Codes of errors other than `invalid_value`."""


class Body(BaseModel):
    """Base of request bodies and their parts."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def parse_body(kind: type[B], body: bytes) -> B:
    """Validates a JSON body, in which every field must be known.

    Raises:
        ApiError: the body is not valid; the error names the field.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _to_api_error(error, body) from None


def parse_request(kind: type[B], body: bytes, *, strict: bool) -> ParsedRequest:
    """Validates the JSON body of a request for an answer.

    Args:
        kind: the schema, with a method `to_request`.
        body: the JSON text.
        strict: rejects unknown and ignorable fields, instead of listing them in `ParsedRequest.ignored`.

    Raises:
        ApiError: the body is not valid; the error names the field.
    """
    ignored: dict[str, None] = {}
    for _ in range(MAX_PASSES):
        try:
            parsed = kind.model_validate_json(body)
        except ValidationError as error:
            if error.error_count() > MAX_ERRORS:
                raise _to_api_error(error, body) from None
            value = _from_json(body)
            unset = _null_paths(error, value)
            paths = unset if strict else unset | _ignorable_paths(error, value)
            if not paths:
                raise _to_api_error(error, body) from None
            for path in sorted(paths, key=_sort_key, reverse=True):  # from the end, so that indices stay valid
                name = _remove(value, path)
                if path not in unset:
                    ignored[name] = None
            body = to_json(value)
        else:
            request: ParsedRequest = parsed.to_request()  # type: ignore[attr-defined]
            names = dict.fromkeys(_header_name(name) for name in (*request.ignored, *reversed(ignored)))
            return request.model_copy(update={"ignored": tuple(names)[:MAX_IGNORED]})
    raise invalid_request("the body has too many unknown fields; send only those of the API")


def ignorable(*neutral: object) -> AfterValidator:
    """Marks a parameter that has no effect here; only strict servers reject values other than `neutral`."""
    return AfterValidator(lambda value: _check_neutral(value, neutral, IGNORABLE))


def tool_type(
    supported: str,
    *,
    ignored: re.Pattern[str] | None = None,
    refused: Mapping[re.Pattern[str], str] = MappingProxyType({}),
) -> WrapValidator:
    """Marks the type of a tool; only strict servers reject tools whose type is to be `ignored`.

    `refused` has the sentences about types for which the supported one is to be written in another way.
    """

    def check(value: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(value)
        except ValidationError:
            for pattern, sentence in refused.items():
                if isinstance(value, str) and pattern.fullmatch(value):
                    raise PydanticCustomError(UNSUPPORTED, "{sentence}", {"sentence": sentence}) from None
            is_ignored = ignored is not None and isinstance(value, str) and ignored.fullmatch(value)
            message = "is not a supported type of tool; write '{supported}'"
            kind = IGNORED_TOOL if is_ignored else UNSUPPORTED
            raise PydanticCustomError(kind, message, {"supported": supported}) from None

    return WrapValidator(check)


def unsupported(sentence: str) -> AfterValidator:
    """Rejects each value, with a sentence that follows the field's name and says what to write instead."""

    def check(_: object) -> object:
        raise PydanticCustomError(UNSUPPORTED, "{sentence}", {"sentence": sentence})

    return AfterValidator(check)


def check_tool_choice(name: str | None, tools: Collection[str], *, is_required: bool) -> None:
    """Raises `ValueError` if a request requires the call of a tool that it doesn't have, or that was ignored."""
    if name is not None and name not in tools:
        raise ValueError(f"tool_choice names {name!r}, which is not among the tools that can be called here")
    if is_required and not tools:
        raise ValueError("tool_choice requires the call of a tool, but none can be called here; write 'auto'")


def only(*neutral: object) -> AfterValidator:
    """Restricts an unsupported parameter to the values at which it has no effect."""
    return AfterValidator(lambda value: _check_neutral(value, neutral, UNSUPPORTED))


def replaced_by(name: str) -> AfterValidator:
    """Rejects a parameter of an older version of the API, for which there is another one."""

    def check(value: object) -> object:
        if value is None or value in ([], "none", "auto"):
            return value
        raise PydanticCustomError(UNSUPPORTED, "is not supported; write {name}", {"name": name})

    return AfterValidator(check)


def _check_neutral(value: object, neutral: Sequence[object], kind: str) -> object:
    if value is None or value in neutral:
        return value
    raise PydanticCustomError(kind, REASON)


# ----------------------------------------------------------------------------------- ignored fields


def _ignorable_paths(error: ValidationError, value: Any) -> set[Path]:
    """Finds the fields whose removal may make a body valid, apart from the extension `conductor`."""
    paths = set[Path]()
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        loc = detail["loc"]
        if detail["type"] in (IGNORABLE, UNKNOWN) and loc[0] != "conductor":
            path = _find_path(value, loc)
            if path is not None:
                paths.add(path)
        elif detail["type"] == IGNORED_TOOL:
            paths.add(loc[:2])
    return {path for path in paths if len(path) <= 2 or path[:2] not in paths}  # not those of a tool that is ignored


def _null_paths(error: ValidationError, value: Any) -> set[Path]:
    """Finds the fields that are null where the schema has another type: many clients write null for what is unset."""
    details = error.errors(include_url=False, include_context=False)
    paths = {_existing_path(value, detail["loc"]) for detail in details if detail["input"] is None}
    return {path for path in paths if path and isinstance(path[-1], str) and _get(value, path) is None}


def _get(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _remove(value: Any, path: Path) -> str:
    """Removes the field at `path` and returns its name, without indices."""
    for key in path[:-1]:
        value = value[key]
    removed = value.pop(path[-1])
    names = [key for key in path if isinstance(key, str)]
    if isinstance(path[-1], int):
        names.append(str(removed.get("type")))
    return ".".join(names)


def _header_name(name: str) -> str:
    """Shortens a name from a request and replaces characters that could forge a header."""
    return re.sub(r"[^\w.-]", "?", name, flags=re.ASCII)[:MAX_NAME_CHARS]


def _sort_key(path: Path) -> list[tuple[int, str]]:
    return [(key, "") if isinstance(key, int) else (-1, key) for key in path]


def _find_path(value: Any, loc: Path) -> Path | None:
    """Converts pydantic's location to a path in the body: names of union members are left out.

    Returns `None` if the last field of `loc` is not in the body.
    """
    if not loc:
        return ()
    key, rest = loc[0], loc[1:]
    if isinstance(value, dict):
        is_present = key in value
    else:
        is_present = isinstance(value, list) and isinstance(key, int) and key < len(value)
    if is_present:
        below = _find_path(value[key], rest)
        if below is not None:
            return (key, *below)
    return _find_path(value, rest) if rest else None


def _from_json(body: bytes) -> Any:
    try:
        return from_json(body)
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------ errors


def _to_api_error(error: ValidationError, body: bytes) -> ApiError:
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
    path = _existing_path(_from_json(body), loc)
    if is_missing:
        path = (*path, deepest["loc"][-1])
    param = ".".join(map(str, path)) or None
    message, code = _message(deepest["type"], deepest["msg"], deepest.get("ctx", {}))
    return invalid_request(_sentence(param, message), param=param, code=code)


def invalid_parameter(detail: Mapping[str, Any]) -> ApiError:
    """Creates the error for a parameter of the path or the query, from pydantic's details."""
    name = str(detail["loc"][-1])
    message, code = _message(detail["type"], detail["msg"], detail.get("ctx", {}))
    return invalid_request(_sentence(name, message), param=name, code=code)


def _sentence(param: str | None, message: str) -> str:
    if param is None:
        return message
    return f"{param}: {message}" if message.startswith("write ") else f"{param} {message}"


def _existing_path(value: Any, loc: Path) -> Path:
    """Returns the longest path in the body that leads towards `loc`."""
    for end in range(len(loc), 0, -1):
        path = _find_path(value, loc[:end])
        if path:
            return path
    return ()


def _message(kind: str, text: str, context: dict[str, Any]) -> tuple[str, str]:
    """Returns the part of the sentence after the field's name, and the error code."""
    discriminator = str(context.get("discriminator", "")).strip("'")
    if kind in SENTENCES:
        expected = INTERNAL_TAG.sub("", str(context.get("expected_tags", "")))
        words = context | {
            "expected_tags": expected,
            "discriminator": discriminator if discriminator.isidentifier() else "type",
        }
        return SENTENCES[kind].format(**words), CODES.get(kind, "invalid_value")
    if kind == "value_error":
        return clean_message(text), "invalid_value"
    for pattern, replacement in JSON_TYPES:
        text = pattern.sub(replacement, text)
    return re.sub(r"^(Input|String|Decimal input) should", "must", text), "invalid_value"
