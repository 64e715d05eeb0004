"""`/v1/responses/ID`: retrieves, deletes and cancels stored responses of the caller's API key."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from rl_conductor_server.api.adapter import ResponseHeader
from rl_conductor_server.api.openai_responses.ids import run_of_response
from rl_conductor_server.api.openai_responses.items import input_items
from rl_conductor_server.api.openai_responses.response import unanswered_body
from rl_conductor_server.api.openai_responses.state.errors import response_not_found
from rl_conductor_server.api.openai_responses.state.resumption import follow_run, resume_stream
from rl_conductor_server.api.openai_responses.state.stored_body import response_body
from rl_conductor_server.endpoints.bodies import json_response, list_body
from rl_conductor_server.endpoints.dependencies import Caller, ServiceDependency
from rl_conductor_server.errors import invalid_request
from rl_conductor_server.service import Service
from rl_conductor_server.store import RunRow, StoredResponse
from rl_conductor_server.threads import run_by_size
from rl_conductor_server.transport.streams import EventStream

router = APIRouter(prefix="/v1/responses")

CANCEL_SECONDS = 5.0
"""Maximum wait of `cancel` for another process to end the run; processes look for such requests every 2 seconds."""
POLL_SECONDS = 0.1


@router.get("/{response}", response_model=dict[str, Any])
async def retrieve(
    response: str,
    service: ServiceDependency,
    key: Caller,
    *,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
) -> Response:
    """Returns a response, which may still be in progress, or streams its events after one of them."""
    if starting_after is not None and not stream:
        raise invalid_request("starting_after needs stream=true", param="starting_after")
    if stream:
        return await _stream(service, response, key.name, starting_after)
    return await _whole_response(service, response, key.name)


async def _whole_response(service: Service, response: str, key: str) -> Response:
    """Returns a response as it is now.

    That of a run in progress in this process needs no room, because its request is in memory.
    """
    row, _ = await _find_run(service, response, key)
    request = service.runs.request_of(row.id)
    if request is not None and row.status == "running":
        header = ResponseHeader(row.id, int(row.created), row.model, fingerprint="")
        return JSONResponse(unanswered_body(request.parsed, header, "in_progress"))

    async def load() -> dict[str, Any]:
        stored, row = await _find_response(service, response, key)
        trace = None if row.status == "running" else await service.store.get_trace(stored.run, key=key)
        return await run_by_size(len(stored.parameters), lambda: response_body(stored, row, trace))

    return await json_response(service, key, await _measure(service, response, key), load)


async def _measure(service: Service, response: str, key: str) -> int:
    """Returns the size of a response without its input, and of the trace of its run."""
    run = run_of_response(response)
    return await service.store.responses.measure(run, key=key) + await service.store.measure_trace(run, key=key)


async def _stream(service: Service, response: str, key: str, after: int | None) -> Response:
    with ExitStack() as resources:
        resources.enter_context(service.streams.reserve(key))
        size = await _measure(service, response, key)
        run, _ = await _find_run(service, response, key)
        handle, request = service.runs.get(run.id), service.runs.request_of(run.id)
        if handle is not None and request is not None:
            resources.enter_context(handle.subscribe())
            frames = follow_run(request, handle, after=after)
        else:
            resources.enter_context(service.reserve_body(size, key))
            stored, row = await _find_response(service, response, key)
            frames = await run_by_size(
                size, lambda: resume_stream(stored, row, service.store, service.stopping, after=after)
            )
        return EventStream(
            frames,
            timeout=service.settings.intake.client_seconds,
            on_close=resources.pop_all().close,
            headers={"x-conductor-run": run.id},
        )


@router.delete("/{response}")
async def delete(response: str, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Deletes a response and the content of its run."""
    row, _ = await _find_run(service, response, key.name)
    if row.status == "running":
        raise invalid_request("The response is still in progress; cancel it before you delete it.", param="response_id")
    await service.store.responses.delete(row.id, key=key.name)
    return {"id": response, "object": "response", "deleted": True}


@router.get("/{response}/input_items", response_model=dict[str, Any])
async def list_input_items(
    response: str,
    service: ServiceDependency,
    key: Caller,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """Lists the input of one request, without the turns before it."""

    async def load() -> dict[str, Any]:
        turns = await service.store.responses.get_all([run], key=key.name)
        if not turns:
            raise response_not_found(run)
        items = await run_by_size(size, lambda: input_items(turns[0]))
        return _page(items, after=after, limit=limit, newest_first=order == "desc")

    run = run_of_response(response)
    size = await service.store.responses.measure_all([run], key=key.name)
    return await json_response(service, key.name, size, load)


def _page(items: list[dict[str, Any]], *, after: str | None, limit: int, newest_first: bool) -> dict[str, Any]:
    if newest_first:
        items.reverse()
    if after is not None:
        position = next((index for index, item in enumerate(items) if item["id"] == after), None)
        if position is None:
            raise invalid_request(f"this response has no input item {after!r}", param="after")
        items = items[position + 1 :]
    return list_body(items[:limit], has_more=len(items) > limit)


@router.post("/{response}/cancel", response_model=dict[str, Any])
async def cancel(response: str, service: ServiceDependency, key: Caller) -> Response:
    """Cancels a response in the background, and returns it; one that has ended is returned as it is."""
    row, is_background = await _find_run(service, response, key.name)
    if not is_background:
        raise invalid_request("Cannot cancel a synchronous response.", param="response_id")
    if row.status == "running":
        await service.store.responses.request_cancel(row.id)
        task = service.runs.cancel(row.id)
        if task is not None:
            await asyncio.wait([task])
        else:
            await _wait_until_ended(service, row.id)
    return await _whole_response(service, response, key.name)


async def _wait_until_ended(service: Service, run: str) -> None:
    """Waits for the process that runs a response."""
    for _ in range(round(CANCEL_SECONDS / POLL_SECONDS)):
        row = await service.store.get_run(run)
        if row is None or row.status != "running":
            return
        await asyncio.sleep(POLL_SECONDS)


async def _find_response(service: Service, response: str, key: str) -> tuple[StoredResponse, RunRow]:
    """Returns a response of an API key and its run.

    Raises:
        ApiError: there is none, or it belongs to another key.
    """
    run = run_of_response(response)
    stored = await service.store.responses.get(run, key=key)
    row = None if stored is None else await service.store.get_run(run, key=key)
    if stored is None or row is None:
        raise response_not_found(run)
    return stored, row


async def _find_run(service: Service, response: str, key: str) -> tuple[RunRow, bool]:
    """Returns the run of a response, and whether it is in the background; raises like `_find_response`.

    The request and the answer, which may be long, are not read.
    """
    run = run_of_response(response)
    is_background = await service.store.responses.is_background(run, key=key)
    row = None if is_background is None else await service.store.get_run(run, key=key)
    if is_background is None or row is None:
        raise response_not_found(run)
    return row, is_background
