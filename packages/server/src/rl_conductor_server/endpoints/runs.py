"""`/v1/runs`: stored runs with their traces."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from rl_conductor.trace.trace import Trace
from rl_conductor_server.access_errors import without_access_errors
from rl_conductor_server.auth.keys import ADMINISTRATOR
from rl_conductor_server.endpoints.bodies import json_response
from rl_conductor_server.endpoints.dependencies import Caller, RunId, ServiceDependency
from rl_conductor_server.errors import ApiError, run_not_found
from rl_conductor_server.service import Service
from rl_conductor_server.store import RunRow

router = APIRouter()

IN_PROGRESS_SECONDS = 10.0
"""Seconds after which a client may try again to delete a run in progress."""


@router.get("/v1/runs/{run}", response_model=dict[str, Any])
async def get_run(run: RunId, service: ServiceDependency, key: Caller) -> Response:
    """Returns a run of this key, with its trace once it has ended."""
    return await run_response(service, run, key=key.name)


@router.delete("/v1/runs/{run}")
async def delete_run(run: RunId, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Erases the content and the user of a run of this key."""
    key.check_rate()
    return await erase_run(service, run, by=key.name, key=key.name)


async def erase_run(service: Service, run: str, *, by: str, key: str | None = None) -> dict[str, Any]:
    """Erases a run; with `key`, only if it belongs to that API key. `by` names the author for the audit record.

    Raises:
        ApiError: there is no such run, or it is in progress.
    """
    match await service.store.erasure.erase_run(run, by=by, key=key):
        case "not found":
            raise run_not_found(run)
        case "in progress":
            message = f"run {run!r}, a replay of it or its batch is in progress; delete it when that has ended"
            raise ApiError(message, status=409, code="run_in_progress", retry_after=IN_PROGRESS_SECONDS)
    return {"object": "run", "id": run, "deleted": True}


async def run_response(
    service: Service,
    run: str,
    *,
    key: str | None = None,
    headers: dict[str, str] | None = None,
    feedback: bool = False,
) -> Response:
    """Returns a run with its trace; with `key`, only if the run belongs to it; with `feedback`, its feedback as well.

    Raises:
        ApiError: there is no such run, or the requests in progress leave too little room.
    """

    async def load() -> dict[str, Any]:
        body = await _load_run(service, run, key=key)
        if feedback:
            body["feedback"] = [entry.model_dump(mode="json") for entry in await service.store.feedback.list(run)]
        return body

    size = await service.store.measure_trace(run, key=key)
    return await json_response(service, key or ADMINISTRATOR, size, load, headers=headers)


async def _load_run(service: Service, run: str, *, key: str | None) -> dict[str, Any]:
    row = await service.store.get_run(run, key=key)
    if row is None:
        raise run_not_found(run)
    trace = await service.store.get_trace(run, key=key)
    if trace is None:
        return run_body(row) | {"trace": None}
    return await asyncio.to_thread(_body_with_trace, row, trace, is_tenant=key is not None)


def _body_with_trace(row: RunRow, trace: Trace, *, is_tenant: bool) -> dict[str, Any]:
    if is_tenant:
        trace = without_access_errors(trace, trace.calls)
    return run_body(row) | {"trace": trace.model_dump(mode="json")}


INTERNAL_FIELDS: dict[str, Any] = {
    "digest": True,
    "cache_digest": True,
    "usage": {"cached_tokens", "cache_write_tokens", "reasoning_tokens"},  # only traces have them
}


def run_body(row: RunRow) -> dict[str, Any]:
    """Formats a run without its trace."""
    return {"object": "run", **row.model_dump(mode="json", exclude=INTERNAL_FIELDS)}
