"""Translates errors of LangChain models into the core's, with API keys redacted, and those of runs into LangChain's."""

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
    RunError,
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
from rl_conductor.trace.trace import Call

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


class RunModelError(RunError, lc_errors.ModelError):
    """A run has no answer, and retrying it would not help."""


class RunAuthenticationError(RunError, lc_errors.ModelAuthenticationError):
    """A run has no answer, because the vendors reject the workers' keys."""


class RunPermissionDeniedError(RunError, lc_errors.ModelPermissionDeniedError):
    """A run has no answer, because the workers' keys lack a permission."""


class RunInvalidRequestError(RunError, lc_errors.ModelInvalidRequestError):
    """A run has no answer, because the vendors reject the requests."""


class RunContextOverflowError(RunError, lc_errors.ContextOverflowError):
    """A run has no answer, because the conversation is longer than the workers can read."""


class RunNotFoundError(RunError, lc_errors.ModelNotFoundError):
    """A run has no answer, because the workers' models don't exist."""


class RunRateLimitError(RunError, lc_errors.ModelRateLimitError):
    """A run has no answer, because the workers are over their rate limits."""


class RunTimeoutError(RunError, lc_errors.ModelTimeoutError):
    """A run has no answer, because the workers took too long."""


class RunAPIError(RunError, lc_errors.ModelAPIError):
    """A run has no answer, because of failures of the vendors that may pass."""


STATUS_ERRORS: dict[int, type[RunError]] = {
    400: RunInvalidRequestError,
    401: RunAuthenticationError,
    403: RunPermissionDeniedError,
    404: RunNotFoundError,
    422: RunInvalidRequestError,
    429: RunRateLimitError,
}


def to_langchain_error(error: RunError) -> RunError:
    """Returns the error as one of LangChain's as well, so that its middleware and fallbacks retry the right ones.

    The kind is that of the last call to each worker. If they failed in different ways, it says only whether all of them
    are worth a retry.
    """
    if type(error) is not RunError:
        return error
    calls = {call.worker: call for call in error.trace.calls if call.worker is not None and not call.is_check}.values()
    kinds = {_error_type(call) for call in calls}
    if len(kinds) == 1:
        kind = kinds.pop()
    else:
        kind = RunAPIError if calls and all(call.retryable for call in calls) else RunModelError
    return kind(str(error), trace=error.trace, ends_run=error.ends_run).with_traceback(error.__traceback__)


@contextmanager
def raise_langchain_errors() -> Iterator[None]:
    """Raises errors of runs in this block as those that `to_langchain_error` returns."""
    try:
        yield
    except RunError as error:
        raise to_langchain_error(error) from None


def _error_type(call: Call) -> type[RunError]:
    if call.context_exceeded:
        return RunContextOverflowError
    if call.outcome == "timeout":
        return RunTimeoutError
    if call.status in STATUS_ERRORS:
        return STATUS_ERRORS[call.status]
    return RunAPIError if call.retryable else RunModelError


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
