"""Classifies failed calls for the trace and formats their errors for the log."""

from __future__ import annotations

import logging

from rl_conductor.calls.budget import UNKNOWN_PRICE
from rl_conductor.errors import (
    AuthenticationError,
    BadRequestError,
    ConductorError,
    ContextLengthError,
    LimitError,
    ModelError,
    ModelTimeoutError,
    OverloadedError,
    RateLimitError,
    UnreachableError,
)
from rl_conductor.models.base import Model
from rl_conductor.models.redaction import redacted_text
from rl_conductor.trace.outcomes import CallOutcome

log = logging.getLogger("rl_conductor.run")

REJECTIONS = (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    OverloadedError,
    RateLimitError,
    UnreachableError,
)
REJECTION_STATUSES = (400, 401, 403, 404, 413, 422, 429, 529)
"""Calls with these errors or statuses fail before the vendor generates anything, so they cost nothing.

After 500, 502, 503 and 504 the model may have answered, and only its reply was lost: a gateway sends them, too.
"""


def is_rejection(error: Exception | None) -> bool:
    """Whether the vendor rejected the call before it generated anything."""
    return isinstance(error, ModelError) and (isinstance(error, REJECTIONS) or error.status in REJECTION_STATUSES)


def outcome_of(error: ConductorError, *, reached_model: bool) -> CallOutcome:
    """The `CallOutcome` of a call that raised `error`."""
    if isinstance(error, LimitError):
        return "timeout" if error.limit == "seconds" else "refused"
    if isinstance(error, ContextLengthError) and not reached_model:
        return "refused"
    return "timeout" if isinstance(error, ModelTimeoutError) else "error"


def needs_warning(error: ConductorError) -> bool:
    """Whether the failure of a call is logged: no adapter knows the cause, or the call has no price to limit."""
    if isinstance(error, LimitError):
        return error.needed == UNKNOWN_PRICE
    return type(error) is ModelError and error.status is None


def format_for_log(error: object, model: Model) -> str:
    """Formats an error on one line, without unprintable characters or the API keys in `model`."""
    text = redacted_text(error, model)
    return "".join(character if character.isprintable() else " " for character in text)
