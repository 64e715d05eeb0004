"""`/v1/files`: files of the caller's API key, for batches and with their results."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from rl_conductor_server.endpoints.bodies import list_body
from rl_conductor_server.endpoints.dependencies import Caller, ServiceDependency
from rl_conductor_server.errors import ApiError, invalid_request, storage_limit_exceeded
from rl_conductor_server.service import Service
from rl_conductor_server.settings import Settings
from rl_conductor_server.store import FilePurpose, Quota, StoredFile
from rl_conductor_server.transport.body import check_content_length, media_type, too_large
from rl_conductor_server.transport.streams import TimedStream

router = APIRouter(prefix="/v1/files")

PIECE_CHARS = 2**16
"""Length of the pieces in which an uploaded file is sent."""
FORM_BYTES = 16 * 2**10
"""Maximum size of the form apart from the file's content."""
UPLOAD_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "contentMediaType": "application/jsonl"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                    },
                }
            }
        },
    }
}


@router.post("", openapi_extra=UPLOAD_BODY)
async def upload(http: Request, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Stores a file of requests for a batch."""
    key.check_rate()
    settings = service.settings
    if media_type(http) != "multipart/form-data":
        raise ApiError("send the file as multipart/form-data", status=415, code="not_multipart")
    check_content_length(http, settings.batches.file_bytes + FORM_BYTES)
    with service.reserve_body(0, key.name) as reserve:
        name, content = await _read_form(http, settings, reserve)
        file = StoredFile(
            id=f"file-{secrets.token_hex(12)}",
            key=key.name,
            name=name,
            purpose="batch",
            bytes=len(content.encode()),
            created=service.store.now(),
        )
        quota = Quota(settings.batches.key_bytes, settings.batches.key_files)
        needed = await service.store.files.add(file, content, quota)
        if needed is not None:
            raise storage_limit_exceeded(_storage_limits(needed, quota), param="file")
    return _file_body(file)


@router.get("")
async def list_files(
    service: ServiceDependency,
    key: Caller,
    *,
    purpose: FilePurpose | None = None,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
) -> dict[str, Any]:
    """Lists the files of the key."""
    last = None if after is None else await find_file(service, after, key.name, param="after")
    newest_first = order == "desc"
    files = await service.store.files.list_files(
        key=key.name, purpose=purpose, after=last, limit=limit + 1, newest_first=newest_first
    )
    return list_body([_file_body(file) for file in files[:limit]], has_more=len(files) > limit)


@router.get("/{file_id}")
async def retrieve(file_id: str, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Returns the name, size and purpose of a file."""
    return _file_body(await find_file(service, file_id, key.name))


@router.get("/{file_id}/content", response_class=Response)
async def read_content(file_id: str, service: ServiceDependency, key: Caller) -> Response:
    """Returns the content of a file, in pieces at the pace of the client."""
    file = await find_file(service, file_id, key.name)
    is_upload = file.part is None
    with ExitStack() as resources:
        size = file.bytes if is_upload else min(file.bytes, service.settings.batches.reply_bytes)
        resources.enter_context(service.reserve_body(size, key.name))
        return TimedStream(
            _read_upload(service, file) if is_upload else service.store.files.read_results(file),
            timeout=service.settings.intake.client_seconds,
            on_close=resources.pop_all().close,
            media_type="application/jsonl",
        )


async def _read_upload(service: Service, file: StoredFile) -> AsyncGenerator[str, None]:
    content = await service.store.files.read_upload(file.id, key=file.key) or ""
    for start in range(0, len(content), PIECE_CHARS):
        yield content[start : start + PIECE_CHARS]


@router.delete("/{file_id}")
async def delete(file_id: str, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Deletes a file with its content."""
    file = await find_file(service, file_id, key.name)
    await service.store.files.delete(file)
    return {"id": file.id, "object": "file", "deleted": True}


async def find_file(service: Service, file: str, key: str, *, param: str = "file_id") -> StoredFile:
    """Returns a file of an API key.

    Raises:
        ApiError: there is none, or it belongs to another key.
    """
    stored = await service.store.files.get(file, key=key)
    if stored is None:
        raise ApiError(f"No such File object: {file[:64]!r}", status=404, code="file_not_found", param=param)
    return stored


def _storage_limits(needed: Quota, quota: Quota) -> str:
    if needed.count > quota.count:
        return f"this key may have {quota.count:,} files; delete some first"
    return (
        f"the files of this key and its unfinished batches may have {quota.bytes:,} bytes in total; delete some first"
    )


def _file_body(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


async def _read_form(http: Request, settings: Settings, reserve: Callable[[int], None]) -> tuple[str, str]:
    """Reads the name and the text of the uploaded file; large ones are on disk meanwhile."""
    limit = settings.batches.file_bytes
    parser = MultiPartParser(
        http.headers, _chunks(http, limit + FORM_BYTES, reserve), max_files=1, max_fields=8, max_part_size=FORM_BYTES
    )
    try:
        async with asyncio.timeout(settings.intake.client_seconds):
            form = await parser.parse()
    except TimeoutError:
        message = f"the body took more than {settings.intake.client_seconds:g} s"
        raise ApiError(message, status=408, code="slow_body") from None
    except (MultiPartException, KeyError, ValueError) as error:
        raise invalid_request(f"the body is not a form with one file: {getattr(error, 'message', error)}") from None
    try:
        return await _read_file(form.get("file"), form.get("purpose"), limit)
    finally:
        await form.close()


async def _read_file(file: object, purpose: object, limit: int) -> tuple[str, str]:
    if not isinstance(file, UploadFile):
        raise invalid_request("file is missing", param="file", code="missing_required_parameter")
    if purpose != "batch":
        raise invalid_request("purpose must be 'batch'", param="purpose")
    content = await file.read()
    if len(content) > limit:
        raise too_large(limit)
    try:
        return file.filename or "input.jsonl", content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise invalid_request("file must be text in UTF-8: one JSON object on each line", param="file") from None


async def _chunks(http: Request, limit: int, reserve: Callable[[int], None]) -> AsyncGenerator[bytes, None]:
    size = 0
    async for chunk in http.stream():
        reserve(len(chunk))
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        yield chunk
