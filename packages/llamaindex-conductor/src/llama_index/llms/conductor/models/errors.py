"""Translates exceptions of LlamaIndex objects into errors of the core, without API keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rl_conductor import ConductorError, ModelError
from rl_conductor.integration import (
    exclude_running_loop,
    find_secrets,
    is_loop_error,
    parse_retry_after,
    redact_secrets,
    refusal,
)


@contextmanager
def translate_errors(name: str, source: object) -> Iterator[None]:
    """Raises `ModelError` for exceptions of `source`, an LLM, an engine or an agent, called `name` in the message.

    The original exception is not chained, because its text or its HTTP request may contain a key.
    """
    try:
        yield
    except (ConductorError, AssertionError, TimeoutError):
        raise
    except Exception as error:
        message = redact_secrets(str(error), find_secrets(source))
        if isinstance(status := getattr(error, "status_code", None), int):
            raise _status_error(error, message, model=name, status=status) from None
        wrong_loop = is_loop_error(error)
        if wrong_loop:
            exclude_running_loop()
        failure = ModelError(f"{name} raised {type(error).__name__}: {message}", model=name, retryable=wrong_loop)
        failure.min_retries = int(wrong_loop)
        raise failure from None


def _status_error(error: Exception, message: str, *, model: str, status: int) -> ModelError:
    """Converts a vendor's HTTP error. It is not retried, because the integration has done so."""
    body = getattr(error, "body", None)
    details = {**body, "message": message} if isinstance(body, Mapping) else message
    retry_after = parse_retry_after(getattr(getattr(error, "response", None), "headers", {}).get("retry-after"))
    converted = refusal(details, model=model, status=status, retry_after=retry_after)
    converted.retryable = False
    return converted
