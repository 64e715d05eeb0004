"""Reads the input file of a batch: JSON Lines of requests, each with an id of the client. Pure."""

from __future__ import annotations

from io import StringIO
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from rl_conductor_server.errors import ApiError
from rl_conductor_server.request_validation.errors import invalid_body
from rl_conductor_server.settings import BatchEntry
from rl_conductor_server.store import InputError, NewItem

Endpoint = Literal["/v1/chat/completions", "/v1/responses"]
"""The endpoints whose requests a batch may contain."""
MAX_ERRORS = 20
"""Maximum number of errors that are reported for a file."""
MAX_QUOTED_CHARS = 64
"""Characters of a wrong value that an error quotes; errors are stored."""


MAX_ID_BYTES = 512


def _check_id(text: str) -> str:
    if "\0" in text:  # the store can't hold it
        raise ValueError("must not contain NUL characters")
    if len(text.encode(errors="replace")) > MAX_ID_BYTES:  # it is kept until the batch is deleted
        raise ValueError(f"must have at most {MAX_ID_BYTES} bytes")
    return text


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    custom_id: Annotated[str, Field(min_length=1), AfterValidator(_check_id)]
    method: Literal["POST"] = "POST"
    url: str
    body: dict[str, Any]


def read_items(
    content: str, endpoint: Endpoint, limits: BatchEntry, *, max_body_bytes: int
) -> tuple[list[NewItem], list[InputError]]:
    """Returns the items of a file, and its errors; a file with an error is rejected as a whole."""
    items, errors, seen = list[NewItem](), list[InputError](), set[str]()
    for number, text in enumerate(StringIO(content, newline="\n"), start=1):  # `splitlines` knows other line ends
        if number > limits.lines:
            message = f"the file has more than {limits.lines:,} lines; split it"
            return [], [InputError(code="too_many_requests", message=message)]
        if not text.strip():
            continue
        item = _read_item(number, text, endpoint, seen, max_body_bytes)
        if isinstance(item, NewItem):
            items.append(item)
        elif len(errors) < MAX_ERRORS:
            errors.append(item)
    if not items and not errors:
        errors.append(InputError(code="empty_file", message="the file has no request; write one on each line"))
    return items, errors


def _read_item(number: int, text: str, endpoint: Endpoint, seen: set[str], max_bytes: int) -> NewItem | InputError:
    try:
        line = _Line.model_validate_json(text)
    except ValidationError as error:
        return _line_error(number, invalid_body(error, text.encode()))
    if line.url != endpoint:
        message = f"line {number} has the url {line.url[:MAX_QUOTED_CHARS]!r}; this batch is for {endpoint!r}"
        return InputError(code="mismatched_url", message=message, line=number, param="url")
    if line.custom_id in seen:
        message = (
            f"line {number} repeats the custom_id {line.custom_id[:MAX_QUOTED_CHARS]!r}; give each request its own"
        )
        return InputError(code="duplicate_custom_id", message=message, line=number, param="custom_id")
    body = to_json(line.body)
    if len(body) > max_bytes:
        message = f"the body in line {number} has {len(body):,} bytes; at most {max_bytes:,} are allowed"
        return InputError(code="request_too_large", message=message, line=number, param="body")
    seen.add(line.custom_id)
    return NewItem(line=number, custom_id=line.custom_id, body=body.decode())


def _line_error(number: int, error: ApiError) -> InputError:
    """Creates the error of a line that is no request, or no JSON object."""
    code = "invalid_json_line" if error.code == "invalid_json" else "invalid_request"
    reason = "write one JSON object on each line" if error.param is None else str(error)
    message = f"line {number} is not a request: {reason}"
    return InputError(code=code, message=message, line=number, param=error.param)
