"""Translates the errors of LangChain models into the core's, with API keys redacted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core import exceptions as lc_errors
from langchain_core.runnables import Runnable

from langchain_conductor.models.interrupts import is_interrupt, paused_error
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
from rl_conductor.integration import (
    exclude_running_loop,
    find_secrets,
    is_loop_error,
    parse_seconds,
    redact_secrets,
    refusal,
)

ERROR_TYPES: dict[type[Exception], type[ModelError]] = {
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
"""The core's error for errors without an HTTP status; the first match counts."""


@contextmanager
def translate_errors(name: str, runnable: Runnable[Any, Any]) -> Iterator[None]:
    """Raises errors of `runnable` as the core's, never `from` the original: its text or request may contain a key."""
    try:
        yield
    except (ConductorError, AssertionError):
        raise
    except Exception as error:
        raise _to_model_error(error, name, runnable) from None


def _to_model_error(error: Exception, name: str, runnable: Runnable[Any, Any]) -> ModelError:
    if is_interrupt(error):
        return paused_error(name)
    text = redact_secrets(str(error), find_secrets(runnable))[:1000] or type(error).__name__
    if is_loop_error(error):
        exclude_running_loop()
        return ModelError(f"{name} raised {type(error).__name__}: {text}", model=name, retryable=True)
    retry_after = parse_seconds(getattr(getattr(error, "response", None), "headers", {}).get("retry-after"))
    status, body = getattr(error, "status_code", None), getattr(error, "body", None)
    if isinstance(status, int):
        details = {**body, "message": text} if isinstance(body, Mapping) else text
        return refusal(details, model=name, status=status, retry_after=retry_after)
    for lc_type, core_type in ERROR_TYPES.items():
        if isinstance(error, lc_type):
            return core_type(f"{name}: {text}", model=name)
    retryable = isinstance(error, lc_errors.ModelError) and error.is_retryable
    return ModelError(f"{name} raised {type(error).__name__}: {text}", model=name, retryable=retryable)
