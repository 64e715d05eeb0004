"""Reads the short JSON bodies of requests that no model answers; `exchange` reads those of the others."""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request

from rl_conductor_server.request_validation.parsing import Body, parse_body
from rl_conductor_server.service import Service
from rl_conductor_server.transport.body import read_json

B = TypeVar("B", bound=Body)


async def read_as(kind: type[B], http: Request, service: Service, *, max_bytes: int | None = None) -> B:
    """Reads and validates a body, of at most the size in the settings unless `max_bytes` is set.

    Raises:
        ApiError: it is too large, too slow, or not valid.
        ClientDisconnect: the client has disconnected.
    """
    intake = service.settings.intake
    body = await read_json(http, max_bytes=max_bytes or intake.body_bytes, seconds=intake.client_seconds)
    return parse_body(kind, body)
