"""Errors of runs that are also LangChain's, so that its middleware and fallbacks know which of them to retry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core import exceptions as lc_errors

from rl_conductor.errors import RunError
from rl_conductor.trace import Call


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

    The kind is that of the last call to each worker that was asked for the answer. If they failed in different ways, it
    says only whether all of them are worth a retry.
    """
    if type(error) is not RunError:
        return error
    calls = {call.worker: call for call in error.trace.answer_calls}.values()
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
