"""Parses request bodies, without the fields that have no effect here."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_json

from rl_conductor_server.errors import invalid_request
from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.request_validation.errors import MAX_ERRORS, UNKNOWN, invalid_body
from rl_conductor_server.request_validation.markers import IGNORABLE, IGNORED_TOOL
from rl_conductor_server.request_validation.paths import Path, existing_path, find_path, json_value

B = TypeVar("B", bound="Body")

MAX_IGNORED = 32
"""Maximum number of ignored fields that a response header names."""
MAX_NAME_CHARS = 64
MAX_PASSES = 4
"""Maximum number of validations of one body; fields of a union may appear only after others were removed."""


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
        raise invalid_body(error, body) from None


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
                raise invalid_body(error, body) from None
            value = json_value(body)
            unset = _null_paths(error, value)
            paths = unset if strict else unset | _ignorable_paths(error, value)
            if not paths:
                raise invalid_body(error, body) from None
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


def _ignorable_paths(error: ValidationError, value: Any) -> set[Path]:
    """Finds the fields to remove from an invalid body so that it may become valid, except in `conductor`."""
    paths = set[Path]()
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        loc = detail["loc"]
        if detail["type"] in (IGNORABLE, UNKNOWN) and loc[0] != "conductor":
            path = find_path(value, loc)
            if path is not None:
                paths.add(path)
        elif detail["type"] == IGNORED_TOOL:
            paths.add(loc[:2])
    return {path for path in paths if len(path) <= 2 or path[:2] not in paths}  # not those of a tool that is ignored


def _null_paths(error: ValidationError, value: Any) -> set[Path]:
    """Finds the fields that are null where the schema has another type: many clients write null for unset fields."""
    details = error.errors(include_url=False, include_context=False)
    paths = {existing_path(value, detail["loc"]) for detail in details if detail["input"] is None}
    return {path for path in paths if path and isinstance(path[-1], str) and _get(value, path) is None}


def _get(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _remove(value: Any, path: Path) -> str:
    """Removes the field at `path` and returns its name, without indices."""
    removed = _get(value, path[:-1]).pop(path[-1])
    names = [key for key in path if isinstance(key, str)]
    if isinstance(path[-1], int):
        names.append(str(removed.get("type")))
    return ".".join(names)


def _header_name(name: str) -> str:
    """Shortens a name from a request and replaces characters that could forge a header."""
    return re.sub(r"[^\w.-]", "?", name, flags=re.ASCII)[:MAX_NAME_CHARS]


def _sort_key(path: Path) -> list[tuple[int, str]]:
    return [(key, "") if isinstance(key, int) else (-1, key) for key in path]
