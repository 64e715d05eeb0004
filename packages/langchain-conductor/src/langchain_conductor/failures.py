"""What LangChain's models raise, as the core's errors, without the keys that it may quote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core import exceptions as lc_errors
from langchain_core.runnables import Runnable

from rl_conductor._internal.blocking import exclude_running_loop, is_loop_error
from rl_conductor._internal.formatting import seconds_in
from rl_conductor.errors import (
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    ConductorError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    RateLimitError,
)
from rl_conductor.models.openai.wire import refusal
from rl_conductor.models.redaction import find_secrets, redact_secrets

ERRORS: dict[type[Exception], type[ModelError]] = {
    lc_errors.ContextOverflowError: ContextLengthError,
    lc_errors.ModelAuthenticationError: AuthenticationError,
    lc_errors.ModelPermissionDeniedError: AuthenticationError,
    lc_errors.ModelInvalidRequestError: BadRequestError,
    lc_errors.ModelNotFoundError: BadRequestError,
    lc_errors.ModelRateLimitError: RateLimitError,
    lc_errors.ModelTimeoutError: ModelTimeoutError,
    lc_errors.OutputParserException: BadResponseError,
    json.JSONDecodeError: BadResponseError,
    TimeoutError: ModelTimeoutError,
}
"""What the errors mean that bear no HTTP status; the first that fits counts."""


@contextmanager
def translated(name: str, runnable: Runnable[Any, Any]) -> Iterator[None]:
    """What `runnable` raises leaves as ours. Never `from` it: its text or request may hold a key."""
    try:
        yield
    except (ConductorError, AssertionError):
        raise
    except Exception as error:
        raise _refusal(error, name, runnable) from None


def _refusal(error: Exception, name: str, runnable: Runnable[Any, Any]) -> ModelError:
    said = redact_secrets(str(error), find_secrets(runnable))[:1000] or type(error).__name__
    if is_loop_error(error):
        exclude_running_loop()
        return ModelError(f"{name} raised {type(error).__name__}: {said}", model=name, retryable=True)
    wait = seconds_in(getattr(getattr(error, "response", None), "headers", {}).get("retry-after"))
    status, body = getattr(error, "status_code", None), getattr(error, "body", None)
    if isinstance(status, int):
        told = {**body, "message": said} if isinstance(body, Mapping) else said
        return refusal(told, model=name, status=status, retry_after=wait)
    for theirs, ours in ERRORS.items():
        if isinstance(error, theirs):
            return ours(f"{name}: {said}", model=name)
    passing = isinstance(error, lc_errors.ModelError) and error.is_retryable
    return ModelError(f"{name} raised {type(error).__name__}: {said}", model=name, retryable=passing)
