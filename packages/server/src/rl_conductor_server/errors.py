"""Refusals and failures as HTTP tells them: each API has its own body, and its SDKs choose the exception by status."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import InterfaceError, OperationalError

from rl_conductor.errors import ConductorError, ConfigError, LimitError, PolicyError, RunError, WorkflowError
from rl_conductor.trace.trace import Trace
from rl_conductor_server.store.codec import OtherReleaseError
from rl_conductor_server.store.write_behind import StoreAwayError

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


class ApiError(ConductorError):
    """What a caller is told instead of an answer."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        """`param` is the field of the request; with `retry_after`, in seconds, asking again may help."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Both SDKs ask again by themselves unless told that it is of no use: our own retries are used up."""
        if self.retry_after is None:
            return {"x-should-retry": "false"}
        return {"x-should-retry": "true", "retry-after": str(max(1, round(self.retry_after)))}


def refused(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """The request can't be honoured as it is."""
    return ApiError(message, status=400, code=code, param=param)


def openai_body(error: ApiError) -> dict[str, Any]:
    """As OpenAI's API writes it."""
    usual = "invalid_request_error" if error.status < 500 else "server_error"
    kind = error.code if error.code == "insufficient_quota" else OPENAI_TYPES.get(error.status, usual)
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def anthropic_body(error: ApiError) -> dict[str, Any]:
    """As Anthropic's API writes it."""
    kind = ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = f"{error.param}: {error}" if error.param else str(error)
    return {"type": "error", "error": {"type": kind, "message": message}}


def api_error(error: Exception) -> ApiError:
    """What a caller is told of `error`; of what should be impossible, nothing but that."""
    match error:
        case ApiError():
            return error
        case RunError():
            return _no_answer(error.trace)
        case OtherReleaseError() | StoreAwayError() | OperationalError() | InterfaceError():
            return _of_the_store(error)
        case PolicyError() if error.rule != "capabilities":
            return ApiError(str(error), status=403, code=f"policy_{error.rule}")
        case ConfigError() | LimitError() | PolicyError() | WorkflowError():
            return refused(str(error))
        case _:
            return ApiError("an error on this server's side; its log says more", status=500, code="internal_error")


def _of_the_store(error: OtherReleaseError | StoreAwayError | OperationalError | InterfaceError) -> ApiError:
    if isinstance(error, OtherReleaseError):
        return ApiError(str(error), status=409, code="other_release")
    return ApiError("the store does not answer", status=503, code="store_away", retry_after=5)


def _no_answer(trace: Trace) -> ApiError:
    calls = list(trace.calls())
    seconds = trace.limits.seconds
    why = f"there is no answer: {trace.error}"
    if calls and all(call.outcome == "refused" for call in calls):
        return refused(f"refused before anything was spent: {calls[0].error}", code="limit_exceeded")
    if trace.error == "cancelled":
        return ApiError("the server is stopping", status=503, code="stopping", retry_after=5)
    if seconds is not None and trace.seconds >= seconds:
        return ApiError(f"{why} (limits.seconds={seconds:g})", status=504, code="deadline_exceeded")
    if calls and calls[-1].outcome == "refused":
        return refused(f"a limit stopped the run: {calls[-1].error}", code="limit_exceeded")
    return ApiError(why, status=502, code="upstream_error")
