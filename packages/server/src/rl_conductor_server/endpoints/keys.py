"""`/admin/keys`: API keys and administrators, created, rotated and revoked at run time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import Field

from rl_conductor_server.auth.budgets import read_spending
from rl_conductor_server.auth.created_keys import MAX_GRACE_SECONDS, KeyNotFoundError, KeyTerms, revoke_key, rotate_key
from rl_conductor_server.endpoints.bodies import read_as
from rl_conductor_server.endpoints.dependencies import ADMIN_ONLY, Administrator, ServiceDependency, json_body
from rl_conductor_server.errors import ApiError
from rl_conductor_server.request_validation.parsing import Body
from rl_conductor_server.settings import EntryName

log = logging.getLogger("rl_conductor_server.admin")
router = APIRouter(prefix="/admin/keys", dependencies=ADMIN_ONLY)
KeyName = Annotated[EntryName, Path()]


class CreateKeyBody(KeyTerms, Body):
    """The body of `POST /admin/keys`."""

    name: EntryName


class RotateKeyBody(Body):
    """The body of `POST /admin/keys/NAME/rotate`."""

    grace_seconds: float = Field(default=0.0, ge=0, le=MAX_GRACE_SECONDS)
    """Seconds for which the old secret remains valid."""


@router.get("")
async def list_keys(service: ServiceDependency) -> dict[str, Any]:
    """Lists all valid API keys with their limits and spending, and all administrators that were created at run time."""
    await service.keys.refresh()
    keys = list(service.keys)
    spending = await read_spending(keys, service.store)
    return {
        "object": "list",
        "data": [key.report(spending[key.name]) for key in keys],
        "administrators": service.keys.admin_names,
    }


@router.post("", openapi_extra=json_body(CreateKeyBody))
async def create_key(http: Request, service: ServiceDependency, administrator: Administrator) -> dict[str, Any]:
    """Creates a key and returns its secret, which can't be read again."""
    body = await read_as(CreateKeyBody, http, service)
    service.catalog.check_models(body.models or (), of="models")
    secret = await service.keys.create(body.name, KeyTerms(**body.model_dump(exclude={"name"})))
    log.info("key created", extra={"key": body.name, "administrator": administrator})
    return {"object": "key", "key": secret, **body.model_dump(mode="json")}


@router.post("/{name}/rotate", openapi_extra=json_body(RotateKeyBody))
async def rotate(
    name: KeyName, http: Request, service: ServiceDependency, administrator: Administrator
) -> dict[str, Any]:
    """Gives a key a new secret, and returns it."""
    body = await read_as(RotateKeyBody, http, service)
    with _not_found():
        secret = await rotate_key(service.store, name, grace_seconds=body.grace_seconds)
    await service.keys.refresh()
    log.info("key rotated", extra={"key": name, "administrator": administrator})
    return {"object": "key", "key": secret, "name": name}


@router.delete("/{name}")
async def revoke(name: KeyName, service: ServiceDependency, administrator: Administrator) -> dict[str, Any]:
    """Revokes a key, at once in this process, and in all others when they next read the keys."""
    with _not_found():
        await revoke_key(service.store, name)
    await service.keys.refresh()
    log.info("key revoked", extra={"key": name, "administrator": administrator})
    return {"object": "key", "name": name, "revoked": True}


@contextmanager
def _not_found() -> Iterator[None]:
    try:
        yield
    except KeyNotFoundError as error:
        raise ApiError(str(error), status=404, code="key_not_found") from error
