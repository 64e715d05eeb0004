"""Converts exceptions to HTTP errors: a status, headers, and a body in the format of each vendor's API."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionError
from starlette.requests import HTTPConnection

from rl_conductor.errors import ConductorError, ConfigError, LimitError, PolicyError, RunError, WorkflowError
from rl_conductor.trace.checks import ENDS_RUN
from rl_conductor.trace.trace import Call, Trace
from rl_conductor_server.access_errors import without_access_errors
from rl_conductor_server.store.codec import IncompatibleReleaseError
from rl_conductor_server.store.write_behind import StoreUnavailableError

OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
OVERLOAD_STATUSES = (429, 503, 529)
"""Statuses of vendors that can't answer at the moment; 529 is Anthropic's."""
STORE_ERRORS = (StoreUnavailableError, OperationalError, InterfaceError, NoConnectionError)
"""Exceptions which mean that the store does not answer at the moment."""
REQUEST_FAULTS = (400, 413, 415, 422)
"""Statuses of vendors that reject the request itself."""
CONTEXT_LENGTH = "context_length_exceeded"
"""The code of the error for a request that no worker can read, as at OpenAI."""
THREAD_UNSUPPORTED = "thread_unsupported_request"
"""The code by which Anthropic's SDKs know that they have to send the whole conversation, without `thread`."""
MAX_RETRY_AFTER = 3_600.0
"""Maximum of the header `Retry-After` in seconds, whatever a vendor asks for."""
DEFAULT_RETRY_AFTER = 5.0
"""Seconds until a retry if nobody says how long to wait."""


class ApiError(ConductorError):
    """An error response; SDKs choose their exception by its status."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        """`param` is the invalid field of the request. `retry_after` is in seconds; with `None`, a retry is useless."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Headers that control retries: both SDKs retry by default, although the server has already used up its own."""
        if self.retry_after is None:
            return {"x-should-retry": "false"}
        return {"x-should-retry": "true", "retry-after": str(max(1, round(min(self.retry_after, MAX_RETRY_AFTER))))}


def invalid_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Creates an error of status 400."""
    return ApiError(message, status=400, code=code, param=param)


def storage_limit_exceeded(message: str, *, param: str | None = None) -> ApiError:
    """Creates the error of a request that would store more than an API key may."""
    return ApiError(message, status=413, code="storage_limit_exceeded", param=param)


def shutting_down() -> ApiError:
    """Creates the error of a request that a server can't answer because it is being stopped."""
    return ApiError("the server is shutting down", status=503, code="stopping", retry_after=DEFAULT_RETRY_AFTER)


def store_unavailable() -> ApiError:
    """Creates the error of a request that needs the store while that does not answer."""
    return ApiError("the store does not answer", status=503, code="store_away", retry_after=DEFAULT_RETRY_AFTER)


def run_not_found(run: str) -> ApiError:
    """Creates the error of a run that was deleted, never existed, or belongs to another key."""
    return ApiError(f"there is no run {run!r}; it may have been deleted", status=404, code="run_not_found")


def openai_error_body(error: ApiError) -> dict[str, Any]:
    """Formats an error as OpenAI's API does."""
    default = "invalid_request_error" if error.status < 500 else "server_error"
    kind = error.code if error.code == "insufficient_quota" else OPENAI_TYPES.get(error.status, default)
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def anthropic_error_body(error: ApiError) -> dict[str, Any]:
    """Formats an error as Anthropic's API does."""
    kind = ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = f"{error.param}: {error}" if error.param and error.param not in str(error) else str(error)
    if error.code == CONTEXT_LENGTH:  # by these words, clients know that they have to shorten the conversation
        message = f"prompt is too long: {message}"
    body: dict[str, Any] = {"type": kind, "message": message}
    if error.code == THREAD_UNSUPPORTED:
        body["details"] = {"error_code": error.code, "unsupported": [error.param]}
    return {"type": "error", "error": body}


def error_body(http: HTTPConnection, error: ApiError) -> dict[str, Any]:
    """Formats an error as the API does that the client uses."""
    is_anthropic = "anthropic-version" in http.headers or http.url.path.startswith("/v1/messages")
    return anthropic_error_body(error) if is_anthropic else openai_error_body(error)


def to_api_error(error: Exception) -> ApiError:
    """Converts an exception to an error response. Unexpected exceptions reveal no details."""
    match error:
        case ApiError():
            return error
        case RunError():
            return _context_error(error.trace) or _run_error(error.trace)
        case ConfigError() | LimitError() | PolicyError() | WorkflowError():
            return _rejection(error)
        case _ if isinstance(error, STORE_ERRORS):
            return store_unavailable()
        case _:
            return ApiError("internal server error; see the server's log", status=500, code="internal_error")


def _rejection(error: ConductorError) -> ApiError:
    if isinstance(error, IncompatibleReleaseError):
        return ApiError(str(error), status=409, code="other_release")
    if isinstance(error, PolicyError) and error.rule != "capabilities":
        return ApiError(str(error), status=403, code=f"policy_{error.rule}")
    return invalid_request(str(error))


def _run_error(trace: Trace) -> ApiError:
    calls = trace.calls
    seconds = trace.limits.seconds
    message = _message(trace)
    if calls and all(call.outcome == "refused" for call in calls):
        return invalid_request(f"refused before anything was spent: {calls[0].error}", code="limit_exceeded")
    if trace.was_cancelled:
        return shutting_down()
    if seconds is not None and trace.seconds >= seconds:
        return ApiError(f"{message} (limits.seconds={seconds:g})", status=504, code="deadline_exceeded")
    if any(check.outcome == "failed" and check.stage in ENDS_RUN for check in trace.checks):
        return ApiError(message, status=502, code="guardrail_failed")
    return overload_error(trace) or _last_error(trace)


def _last_error(trace: Trace) -> ApiError:
    """Returns the error of a run that the last call ended, or all workers together."""
    calls, message = trace.calls, _message(trace)
    if calls and calls[-1].outcome == "refused":
        return invalid_request(f"a limit stopped the run: {calls[-1].error}", code="limit_exceeded")
    last_calls = _last_calls(trace.answer_calls)
    if last_calls and all(call.status in REQUEST_FAULTS for call in last_calls):
        return invalid_request(message)
    return ApiError(message, status=502, code="upstream_error")


def _last_calls(calls: Iterable[Call]) -> Collection[Call]:
    """Returns the last call to every worker."""
    return {call.worker: call for call in calls}.values()


def _context_error(trace: Trace) -> ApiError | None:
    """Returns the error of a request that is too long for every worker."""
    last_calls = _last_calls(trace.answer_calls)
    if not last_calls or not all(call.context_exceeded for call in last_calls):
        return None
    return invalid_request(_message(trace), code=CONTEXT_LENGTH)


def _message(trace: Trace) -> str:
    return without_access_errors(f"there is no answer: {trace.error}", trace.calls)


def overload_error(trace: Trace) -> ApiError | None:
    """Returns an error that is worth a retry if all vendors that were asked for the answer are overloaded.

    Calls that a budget refused were not sent: the budget may have had no room only for a further try or replacement.
    """
    last_calls = _last_calls(call for call in trace.answer_calls if call.outcome != "refused")
    if not last_calls or not all(call.retryable and call.status in OVERLOAD_STATUSES for call in last_calls):
        return None
    waits = [call.retry_after for call in last_calls if call.retry_after is not None]
    retry_after = min(waits, default=DEFAULT_RETRY_AFTER)
    if all(call.status == 429 for call in last_calls):
        return ApiError(_message(trace), status=429, code="upstream_rate_limit", retry_after=retry_after)
    return ApiError(_message(trace), status=503, code="upstream_overloaded", retry_after=retry_after)
