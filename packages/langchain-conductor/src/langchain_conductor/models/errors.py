"""Translates errors of LangChain models and other runnables into the core's, with API keys redacted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core import exceptions as lc_errors
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable

from langchain_conductor.models.interrupts import interrupt_error, is_resumed, resume_error
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
from rl_conductor.integration import host_error, is_rejection, model_error, parts_of

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
}
"""The core's error for errors without an HTTP status; the first match counts."""


@contextmanager
def translate_errors(name: str, runnable: Runnable[Any, Any]) -> Iterator[None]:
    """Raises errors of `runnable` as the core's, never `from` the original: its text or request may contain a key.

    Errors of a vendor are not retried if the client of `runnable` has retried its requests. Other errors end the run
    if `runnable` was resumed, since it may not accept the value.
    """
    was_resumed = is_resumed()
    try:
        yield
    except (ConductorError, AssertionError):
        raise
    except Exception as error:
        model_error = _to_model_error(error, name, runnable)
        if was_resumed and type(model_error) is ModelError and not _is_vendor_error(error):
            model_error = resume_error(model_error, name)
        if _is_vendor_error(error) and _retries_itself(runnable):
            model_error.max_retries = 0
        raise model_error from None


def is_rejected(error: BaseException) -> bool:
    """Whether a vendor rejected a call before it generated anything, so that the call costs nothing."""
    return isinstance(error, Exception) and is_rejection(model_error(error, name="", source=None, kinds=ERROR_TYPES))


def check_stream(error: Exception, name: str) -> None:
    """Raises `BadResponseError` if `error` says that a reply was not streamed at all, as from servers that can't.

    LangChain raises a `ValueError` for it, and OpenAI's client an `AssertionError` without a message.
    """
    if str(error) in ("", "No generation chunks were returned") and isinstance(error, (ValueError, AssertionError)):
        raise BadResponseError(
            f"the reply of {name} was not streamed; if its server can't stream, create its chat model with "
            "disable_streaming=True",
            model=name,
            retryable=False,
        ) from None


def _to_model_error(error: Exception, name: str, runnable: Runnable[Any, Any]) -> ModelError:
    if (interrupt := interrupt_error(error, name)) is not None:
        return interrupt
    model_error = host_error(error, name=name, source=runnable, kinds=ERROR_TYPES)
    if isinstance(error, lc_errors.ModelError) and type(model_error) is ModelError:
        model_error.retryable = error.is_retryable
    return model_error


def _is_vendor_error(error: Exception) -> bool:
    return isinstance(getattr(error, "status_code", None), int) or isinstance(error, lc_errors.ModelError)


def _retries_itself(runnable: Runnable[Any, Any]) -> bool:
    """Whether the chat models in `runnable` retry requests; `max_retries=None` leaves the number to their clients."""
    models = [part for _, part in parts_of(runnable) if isinstance(part, BaseChatModel)]
    return bool(models) and all(getattr(model, "max_retries", 0) != 0 for model in models)
