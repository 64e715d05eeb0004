"""FastAPI dependencies of the endpoints: the service, the caller's API key and the administrator."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Request
from pydantic import BaseModel

from rl_conductor_server.auth.keys import ApiKey
from rl_conductor_server.service import Service
from rl_conductor_server.transport.access_log import add_log_fields


def get_service(http: Request) -> Service:
    """Returns the service that the application opened at its start."""
    service: Service = http.app.state.service
    return service


ServiceDependency = Annotated[Service, Depends(get_service)]
RunId = Annotated[str, Path(pattern=r"^[\w-]{1,32}$")]


async def authenticate(http: Request, service: ServiceDependency) -> ApiKey:
    """Returns the caller's API key. Raises `ApiError`."""
    return service.authenticate(http)


async def require_admin(http: Request, service: ServiceDependency) -> str:
    """Returns the administrator's name. Raises `ApiError` unless the request has the key of one."""
    name = service.keys.check_admin(http)
    add_log_fields(http, administrator=name)
    return name


BODIES: list[type[BaseModel]] = []
"""The bodies that endpoints parse themselves, so that errors have the format of their API. `openapi` describes them."""


def json_body(kind: type[BaseModel]) -> dict[str, Any]:
    """Returns the OpenAPI description of a JSON body that the endpoint parses itself, and adds it to `BODIES`."""
    BODIES.append(kind)
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


Caller = Annotated[ApiKey, Depends(authenticate)]
"""The API key of the request."""
Administrator = Annotated[str, Depends(require_admin)]
ADMIN_ONLY = [Depends(require_admin)]
