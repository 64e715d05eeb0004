"""Translates errors of LangChain models and other runnables into the core's, with API keys redacted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core import exceptions as lc_errors
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable

from langchain_conductor.models.interrupts import interrupt_error
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
    parse_retry_after,
    parts_of,
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
    """Raises errors of `runnable` as the core's, never `from` the original: its text or request may contain a key.

    Errors of a vendor are not retried if the client of `runnable` has retried its requests.
    """
    try:
        yield
    except (ConductorError, AssertionError):
        raise
    except Exception as error:
        model_error = _to_model_error(error, name, runnable)
        if _is_vendor_error(error) and _retries_itself(runnable):
            model_error.max_retries = 0
        raise model_error from None


def _to_model_error(error: Exception, name: str, runnable: Runnable[Any, Any]) -> ModelError:
    if (interrupt := interrupt_error(error, name)) is not None:
        return interrupt
    text = redact_secrets(str(error), find_secrets(runnable))[:1000] or type(error).__name__
    if is_loop_error(error):
        exclude_running_loop()
        wrong_loop = ModelError(f"{name} raised {type(error).__name__}: {text}", model=name, retryable=True)
        wrong_loop.min_retries = 1
        return wrong_loop
    retry_after = parse_retry_after(getattr(getattr(error, "response", None), "headers", {}).get("retry-after"))
    status, body = getattr(error, "status_code", None), getattr(error, "body", None)
    if isinstance(status, int):
        details = {**body, "message": text} if isinstance(body, Mapping) else text
        return refusal(details, model=name, status=status, retry_after=retry_after)
    for lc_type, core_type in ERROR_TYPES.items():
        if isinstance(error, lc_type):
            return core_type(f"{name}: {text}", model=name)
    retryable = isinstance(error, lc_errors.ModelError) and error.is_retryable
    return ModelError(f"{name} raised {type(error).__name__}: {text}", model=name, retryable=retryable)


def _is_vendor_error(error: Exception) -> bool:
    return isinstance(getattr(error, "status_code", None), int) or isinstance(error, lc_errors.ModelError)


def _retries_itself(runnable: Runnable[Any, Any]) -> bool:
    """Whether the chat models in `runnable` retry requests; `max_retries=None` leaves the number to their clients."""
    models = [part for _, part in parts_of(runnable) if isinstance(part, BaseChatModel)]
    return bool(models) and all(getattr(model, "max_retries", 0) != 0 for model in models)
