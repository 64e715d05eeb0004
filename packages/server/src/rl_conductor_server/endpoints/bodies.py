"""Reads the short bodies of requests that no model answers, and writes responses: lists, and stored values of any size.

`exchange` reads the bodies of requests that models answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from rl_conductor_server.request_validation.parsing import Body, parse_body
from rl_conductor_server.service import Service
from rl_conductor_server.threads import MAX_INLINE_BYTES, run_by_size
from rl_conductor_server.transport.body import read_json
from rl_conductor_server.transport.streams import in_pieces

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


def list_body(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Formats a page of a list. Clients send `last_id` to get the next one."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else ("", "")
    return {"object": "list", "data": data, "has_more": has_more, "first_id": first, "last_id": last}


async def json_response(
    service: Service,
    key: str,
    size: int,
    load: Callable[[], Awaitable[Any]],
    *,
    headers: dict[str, str] | None = None,
) -> Response:
    """Returns the result of `load`, about `size` bytes, and reserves memory for it until the client has it.

    `key` is the name of the API key, or `ADMINISTRATOR`.

    Raises:
        ApiError: the requests in progress leave too little room.
    """
    with ExitStack() as resources:
        resources.enter_context(service.reserve_body(size, key))
        value = await load()
        response = await run_by_size(size, lambda: JSONResponse(value, headers=headers))
        if size <= MAX_INLINE_BYTES:
            return response
        return in_pieces(response, timeout=service.settings.intake.client_seconds, on_close=resources.pop_all().close)
