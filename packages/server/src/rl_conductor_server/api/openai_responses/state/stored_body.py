"""Formats stored responses and their input items."""

from __future__ import annotations

from typing import Any

from rl_conductor.execution.answer import run_error
from rl_conductor.trace.trace import Trace
from rl_conductor_server.api.adapter import ResponseHeader
from rl_conductor_server.api.openai_responses.response import answered_body, unanswered_body
from rl_conductor_server.api.openai_responses.schema import StoredParameters
from rl_conductor_server.api.results import Results
from rl_conductor_server.errors import ApiError, to_api_error
from rl_conductor_server.store import RunRow, StoredResponse, decode
from rl_conductor_server.store.models import SERVER_GONE

STOPPED = "the server was stopped, or had no room, before there was an answer"


def response_body(stored: StoredResponse, row: RunRow, trace: Trace | None) -> dict[str, Any]:
    """Builds the body of a stored response, whether its run has ended or not."""
    parsed = decode(StoredParameters, stored.parameters, run=stored.run).to_request()
    header = ResponseHeader(stored.run, int(stored.created), row.model, fingerprint="")
    if row.status == "running":
        return unanswered_body(parsed, header, "in_progress")
    if trace is not None and trace.completion is not None:
        return answered_body(parsed, header, Results((trace,)))
    if row.status == "cancelled" and stored.cancel_requested:
        return unanswered_body(parsed, header, "cancelled")
    return unanswered_body(parsed, header, "failed", _failure(row, trace))


def _failure(row: RunRow, trace: Trace | None) -> ApiError:
    """Returns why a run has no answer, as its client was told."""
    if row.error_code is not None:
        return ApiError(row.error or "the run failed", status=500, code=row.error_code)
    if trace is not None and row.status == "failed" and not row.lost_its_server:
        return to_api_error(run_error(trace))
    error = SERVER_GONE if row.lost_its_server else STOPPED if row.status == "cancelled" else row.error
    return ApiError(error or "the run failed", status=500, code="server_error")
