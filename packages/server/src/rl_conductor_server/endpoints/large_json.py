"""Returns stored values as JSON that may be as large as a request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from fastapi.responses import JSONResponse, Response

from rl_conductor_server.api.threads import MAX_INLINE_BYTES, run_by_size
from rl_conductor_server.service import Service
from rl_conductor_server.transport.streams import TimedStream

PIECE_BYTES = 2**16
"""Size of the pieces in which a large value is sent."""


async def json_response(
    service: Service,
    key: str,
    size: int,
    load: Callable[[], Awaitable[Any]],
    *,
    headers: dict[str, str] | None = None,
) -> Response:
    """Returns what `load` reads from the store: about `size` bytes, for which there is room until the client has them.

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
        return TimedStream(
            _split(bytes(response.body)),
            timeout=service.settings.intake.client_seconds,
            on_close=resources.pop_all().close,
            headers=dict(response.headers),
        )


async def _split(body: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]
