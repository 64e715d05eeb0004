"""Errors of OpenAI's API and compatible servers, without I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rl_conductor.errors import ContextLengthError, ModelError, OverloadedError, RateLimitError
from rl_conductor.models.vendor_errors import MAX_ERROR_LENGTH, quote_body, status_error

TOO_LONG = re.compile(r"context (length|size|window)", re.IGNORECASE)
"""Matches messages about a too long request from servers that send no error code."""
OVERLOADS = frozenset({"server_is_overloaded", "slow_down", "service_unavailable_error", "unavailable_error"})
"""Codes and types of errors about an overloaded server: those of OpenAI, and the last one of llama.cpp."""
OVERLOADED = re.compile("overloaded", re.IGNORECASE)
"""Matches messages about it in errors that have no code."""


def refusal(body: object, *, model: str, status: int | None = None, retry_after: float | None = None) -> ModelError:
    """Converts a server's `error` object to an error; without an HTTP `status`, its `code` may contain one."""
    fields = body if isinstance(body, Mapping) else {"message": body}
    detail = quote_body(str(fields.get("message") or fields.get("detail") or body), status)[:MAX_ERROR_LENGTH]
    code = str(fields.get("code"))
    if status is None and re.fullmatch("[45]..", code):
        status = int(code)
    message = f"{model}: {detail}"
    if (status or 400) < 429 and (code == "context_length_exceeded" or TOO_LONG.search(detail)):
        return ContextLengthError(message, model=model, status=status)
    if code == "insufficient_quota":
        return RateLimitError(message, model=model, status=status, retryable=False)
    if status in (None, 503) and _is_overload(body):
        return OverloadedError(message, model=model, status=status, retry_after=retry_after)
    if status is None:
        return ModelError(message, model=model, retryable=True)
    return status_error(message, model=model, status=status, retry_after=retry_after)


def _is_overload(body: object) -> bool:
    """Whether an error says that the server is overloaded; a gateway's web page or text does not."""
    if not isinstance(body, Mapping):
        return False
    names_it = not OVERLOADS.isdisjoint((str(body.get("code")), str(body.get("type"))))
    return names_it or OVERLOADED.search(str(body.get("message"))) is not None
