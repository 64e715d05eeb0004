"""Converts the exceptions of other libraries and of users' code into the core's errors, without API keys."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import NoReturn

from rl_conductor._internal.blocking import exclude_running_loop, is_loop_error
from rl_conductor.errors import ConductorError, ModelError, ModelTimeoutError, ScriptError, UnreachableError
from rl_conductor.models.base import Model
from rl_conductor.models.openai.errors import refusal
from rl_conductor.models.redaction import environment_secrets, find_secrets, redact_secrets, redacted_text
from rl_conductor.models.vendor_errors import parse_retry_after
from rl_conductor.types import Usage

SDK_CONNECTION_ERROR, SDK_TIMEOUT = "APIConnectionError", "APITimeoutError"
"""The names in the SDKs of OpenAI, Anthropic and others; the second class is derived from the first."""
NOT_CONNECTED = frozenset({"ConnectError", "ConnectTimeout"})
"""The names of httpx's errors for a connection that was never there."""

FOREIGN_ERRORS = (Exception, SystemExit)
"""Errors of users' code that fail a call. Otherwise a `SystemExit`, as of a library for command lines, would end the
program and all of its runs."""

LOOP_ADVICE = "an async client in it was used on another event loop; call its sync methods, in a function without async"


def raise_translated(error: BaseException, model: Model, *, usage: Usage | None = None) -> NoReturn:
    """Raises `ModelError` for an exception of a user's own model or function; our errors stay as they are.

    Args:
        error: the exception.
        model: the model that raised it; the message has none of its keys.
        usage: what the failed call used, if that is known.
    """
    if isinstance(error, ConductorError | ScriptError):
        raise error
    translated = model_error(error, name=model.name, source=model)
    if is_loop_error(error):
        translated.args = (f"{translated}; {LOOP_ADVICE}",)
    translated.usage = usage
    if not _shows_key(error, model):
        raise translated from error
    try:
        raise translated from None
    finally:
        translated.__context__ = None  # error trackers may read it all the same


def _shows_key(error: BaseException, source: object) -> bool:
    """Returns whether a traceback of an error, with its notes and causes, would show a key."""
    text = "".join(traceback.format_exception(error))
    return redact_secrets(text, find_secrets(source) | environment_secrets()) != text


def host_error(
    error: Exception, *, name: str, source: object, kinds: Mapping[type[Exception], type[ModelError]] | None = None
) -> ModelError:
    """Converts an exception of a host framework's object, as `model_error` does.

    If a client turned out to be bound to another event loop, the call is retried once, by its sync method.
    """
    if not is_loop_error(error):
        return model_error(error, name=name, source=source, kinds=kinds)
    exclude_running_loop()
    loop_error = _unknown_error(error, name, _text_of(error, source))
    loop_error.retryable, loop_error.min_retries = True, 1
    return loop_error


def model_error(
    error: BaseException, *, name: str, source: object, kinds: Mapping[type[Exception], type[ModelError]] | None = None
) -> ModelError:
    """Converts an exception that a call of another library raised. It must not be chained if it may quote a key.

    Args:
        error: the exception.
        name: the name of the model, agent or engine that raised it.
        source: that object; the message has none of the keys in it.
        kinds: the errors for exceptions without an HTTP status; the first match counts.
    """
    text, status = _text_of(error, source), getattr(error, "status_code", None)
    if isinstance(status, int):
        body = getattr(error, "body", None)
        details = {**body, "message": text} if isinstance(body, Mapping) else text
        retry_after = parse_retry_after(getattr(getattr(error, "response", None), "headers", {}).get("retry-after"))
        return refusal(details, model=name, status=status, retry_after=retry_after)
    base_names = {kind.__name__ for kind in type(error).__mro__}
    if SDK_CONNECTION_ERROR in base_names and _has_never_connected(error):
        return UnreachableError(f"{name}: can't reach its server: {text}", model=name)
    for theirs, ours in (kinds or {}).items():
        if isinstance(error, theirs):
            return ours(f"{name}: {text}", model=name)
    if isinstance(error, TimeoutError) or SDK_TIMEOUT in base_names:
        return ModelTimeoutError(f"{name} gave no answer in time: {text}", model=name)
    return _unknown_error(error, name, text)


def _unknown_error(error: BaseException, name: str, text: str) -> ModelError:
    return ModelError(f"{name} raised {type(error).__name__}: {text}", model=name)


def _text_of(error: BaseException, source: object) -> str:
    return redacted_text(error, source) or type(error).__name__


def _has_never_connected(error: BaseException | None) -> bool:
    """Whether the connection failed before the request was sent; without that, it may have been answered and billed."""
    while error is not None:
        if type(error).__name__ in NOT_CONNECTED:
            return True
        error = error.__cause__
    return False
