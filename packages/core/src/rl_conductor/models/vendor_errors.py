"""Errors of vendors' HTTP APIs: the error class of a status, the time to wait, and how much is quoted."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from pydantic import ValidationError

from rl_conductor._internal.formatting import parse_seconds
from rl_conductor._internal.validation import first_field_error
from rl_conductor.errors import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    OverloadedError,
    RateLimitError,
)

MAX_ERROR_LENGTH = 1000
"""Maximum number of characters quoted from a vendor's error message."""

_WEB_PAGE = re.compile(r"\s*<(!doctype html|html)\b", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>([^<]+)", re.IGNORECASE)
_SEARCHED = 10_000
"""Characters of a web page in which its title is looked for."""

MALFORMED_REPLY_ERRORS = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors that vendors' libraries raise for a malformed reply, because they do not validate it."""

ERRORS_BY_STATUS: dict[int, type[ModelError]] = {
    401: AuthenticationError,
    402: AuthenticationError,
    403: AuthenticationError,
    408: ModelTimeoutError,
    413: ContextLengthError,
    429: RateLimitError,
    504: ModelTimeoutError,
    529: OverloadedError,
}
"""Error class by HTTP status; any other 4xx is a `BadRequestError`, any other 5xx a retryable `ModelError`."""


def status_error(
    message: str, *, model: str, status: int, retry_after: float | None = None, is_overload: bool = False
) -> ModelError:
    """Builds the error for an HTTP status.

    With `is_overload`, the vendor itself says that it is overloaded; a status of 503 may be a gateway's, whose request
    the model got.
    """
    if is_overload:
        return OverloadedError(message, model=model, status=status, retry_after=retry_after)
    if 300 <= status < 400:
        reason = "redirects are not followed, because they could leak the key; pass the final address as base_url"
        return BadRequestError(f"{model}: HTTP status {status}: {reason}", model=model, status=status)
    if status in ERRORS_BY_STATUS:
        return ERRORS_BY_STATUS[status](message, model=model, status=status, retry_after=retry_after)
    if status < 500:
        return BadRequestError(message, model=model, status=status)
    return ModelError(message, model=model, status=status, retryable=True, retry_after=retry_after)


def quote_body(body: str, status: int | None) -> str:
    """Returns an error's body as it is quoted: of a web page, such as a gateway's, the status and the page's title."""
    if not _WEB_PAGE.match(body):
        return body
    title = _TITLE.search(body[:_SEARCHED])
    text = f"HTTP status {status}, with a web page in place of a reply"
    return f"{text}: {' '.join(title[1].split())}" if title else text


def describe_violation(error: ValidationError) -> str:
    """Says where a reply differs from the vendor's protocol, without advice: the user did not write it."""
    path = first_field_error(error).path
    return f"its field {path!r} is missing or invalid" if path else "it is no JSON object"


def parse_retry_after(header: str | None) -> float | None:
    """Returns the seconds to wait that a `Retry-After` header names as a number or a date; `None` if it names none."""
    seconds = parse_seconds(header)
    if seconds is not None or header is None:
        return seconds
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  slow to import, and seldom needed

    try:
        date = parsedate_to_datetime(header)
    except (ValueError, OverflowError):  # of a year that is too large
        return None
    return max((date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)
