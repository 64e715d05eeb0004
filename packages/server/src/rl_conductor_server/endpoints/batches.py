"""`/v1/batches`: batches of requests of the caller's API key, which are processed in the background."""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from rl_conductor_server.batches.input_file import Endpoint, read_items
from rl_conductor_server.endpoints.bodies import list_body, read_as
from rl_conductor_server.endpoints.dependencies import Caller, ServiceDependency, json_body
from rl_conductor_server.endpoints.files import find_file
from rl_conductor_server.errors import ApiError, invalid_request, storage_limit_exceeded
from rl_conductor_server.parsed_request import Metadata
from rl_conductor_server.request_validation.parsing import Body
from rl_conductor_server.service import Service
from rl_conductor_server.store import StoredBatch
from rl_conductor_server.store.batches.batches import BatchLimits, BatchRefusal

router = APIRouter(prefix="/v1/batches")

WINDOW_SECONDS = 24 * 3_600
MAX_BODY_BYTES = 32 * 2**10


class CreateBatchBody(Body):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None


@router.post("", openapi_extra=json_body(CreateBatchBody))
async def create(http: Request, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Creates a batch from an uploaded file."""
    key.check_rate()
    settings = service.settings
    body = await read_as(CreateBatchBody, http, service, max_bytes=MAX_BODY_BYTES)
    file = await find_file(service, body.input_file_id, key.name, param="input_file_id")
    if file.purpose != "batch":
        raise invalid_request("input_file_id must name a file with the purpose 'batch'", param="input_file_id")
    with service.reserve_body(file.bytes, key.name):
        content = await service.store.files.read_upload(file.id, key=key.name) or ""
        items, errors = await asyncio.to_thread(
            read_items, content, body.endpoint, settings.batches, max_body_bytes=settings.intake.body_bytes
        )
        now = service.store.now()
        batch = StoredBatch(
            id=f"batch_{secrets.token_hex(12)}",
            key=key.name,
            endpoint=body.endpoint,
            input_file=file.id,
            created=now,
            expires=now + WINDOW_SECONDS,
            labels=body.metadata or {},
            **({"status": "failed", "ended": now, "errors": tuple(errors)} if errors else {"total": len(items)}),
        )
        limits = BatchLimits(settings.batches.unfinished, settings.batches.key_batches, settings.batches.key_bytes)
        refusal = await service.store.batches.add(batch, [] if errors else items, limits)
        if refusal is not None:
            raise _refusal_error(refusal, limits, settings.store.retain_days)
    return _batch_body(await _find_batch(service, batch.id, key.name))


@router.get("")
async def list_batches(
    service: ServiceDependency,
    key: Caller,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """Lists the batches of the key, newest first."""
    last = None if after is None else await _find_batch(service, after, key.name)
    batches = await service.store.batches.list_batches(key=key.name, after=last, limit=limit + 1)
    return list_body([_batch_body(batch) for batch in batches[:limit]], has_more=len(batches) > limit)


@router.get("/{batch_id}")
async def retrieve(batch_id: str, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Returns a batch with the number of requests that have ended."""
    return _batch_body(await _find_batch(service, batch_id, key.name))


@router.post("/{batch_id}/cancel")
async def cancel(batch_id: str, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Cancels a batch; the results so far remain available."""
    batch = await _find_batch(service, batch_id, key.name)
    if batch.status == "validating":
        raise ApiError("the batch is being created; try again", status=409, code="batch_busy", retry_after=1)
    await service.store.batches.cancel(batch.id)
    return _batch_body(await _find_batch(service, batch_id, key.name))


def _refusal_error(refusal: BatchRefusal, limits: BatchLimits, retain_days: float) -> ApiError:
    match refusal:
        case "unfinished":
            message = f"this key has {limits.unfinished} batches that have not ended; wait for one, or cancel it"
            return ApiError(message, status=429, code="too_many_batches", retry_after=60)
        case "count":
            message = f"this key has {limits.count:,} batches; they are deleted after {retain_days:g} days"
            return ApiError(message, status=429, code="too_many_batches")
        case "bytes":
            message = (
                f"the files of this key and its unfinished batches may have {limits.bytes:,} bytes in total; delete "
                "files, or wait for batches"
            )
            return storage_limit_exceeded(message, param="input_file_id")


async def _find_batch(service: Service, batch: str, key: str) -> StoredBatch:
    stored = await service.store.batches.get(batch, key=key)
    if stored is None:
        raise ApiError(f"No batch found with id {batch[:64]!r}.", status=404, code="batch_not_found")
    return stored


def _batch_body(batch: StoredBatch) -> dict[str, Any]:
    ended = {f"{batch.status}_at": _seconds(batch.ended)} if batch.ended else {}
    times = dict.fromkeys(("failed_at", "finalizing_at", "completed_at", "expired_at", "cancelled_at"))
    errors = [error.model_dump() for error in batch.errors]
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": batch.input_file,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": _seconds(batch.created),
        "in_progress_at": None if batch.status in ("validating", "failed") else _seconds(batch.created),
        "expires_at": _seconds(batch.expires),
        "cancelling_at": _seconds(batch.cancelling),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": batch.labels or None,
    } | (times | ended)


def _seconds(time: float | None) -> int | None:
    return None if time is None else int(time)
