"""Reads request bodies with limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from starlette.requests import Request

from rl_conductor_server.errors import DEFAULT_RETRY_AFTER, ApiError


class ReadingLimit:
    """Limits the bodies of clients without a key that are read at once: a further one takes the place of the oldest.

    Whoever sends many slowly therefore keeps nobody out.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._reading: dict[asyncio.Timeout, None] = {}
        """The timeout that ends the reading of each body, the oldest first."""

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None, None]:
        """Lets a body be read in the block. Raises `ApiError` if others take its place."""
        try:
            async with asyncio.timeout(None) as turn:
                self._reading[turn] = None
                if len(self._reading) > self._maximum:
                    oldest = next(iter(self._reading))
                    del self._reading[oldest]
                    oldest.reschedule(asyncio.get_running_loop().time())
                try:
                    yield
                finally:
                    self._reading.pop(turn, None)
        except TimeoutError:
            message = "too many bodies are being sent; try again later"
            raise ApiError(message, status=503, code="busy", retry_after=DEFAULT_RETRY_AFTER) from None


async def read_json(
    http: Request, *, max_bytes: int, seconds: float, on_chunk: Callable[[int], None] = lambda _: None
) -> bytes:
    """Reads the body of a JSON request, without parsing it; `on_chunk` gets the size of each part before it is kept.

    Raises:
        ApiError: the content type is not JSON, or see `read_body`.
        ClientDisconnect: the client has disconnected.
    """
    if media_type(http) != "application/json":
        raise ApiError("send the body as content-type: application/json", status=415, code="not_json")
    return await read_body(http, max_bytes=max_bytes, seconds=seconds, on_chunk=on_chunk)


def media_type(http: Request) -> str:
    """Returns the content type of a request in lower case, without parameters; empty if there is none."""
    return http.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(
    http: Request, *, max_bytes: int, seconds: float, on_chunk: Callable[[int], None] = lambda _: None
) -> bytes:
    """Reads the body of a request of any content type.

    Raises:
        ApiError: the body is compressed or larger than `max_bytes`, or takes more than `seconds`.
        ClientDisconnect: the client has disconnected.
    """
    if http.headers.get("content-encoding", "identity").lower() != "identity":
        message = "send the body uncompressed, without the header content-encoding"
        raise ApiError(message, status=415, code="compressed_body")
    check_content_length(http, max_bytes)
    try:
        async with asyncio.timeout(seconds):
            return await _read_chunks(http, max_bytes, on_chunk)
    except TimeoutError:
        raise ApiError(f"the body took more than {seconds:g} s", status=408, code="slow_body") from None


def check_content_length(http: Request, max_bytes: int) -> None:
    """Raises `ApiError` if a request declares more than `max_bytes`."""
    if int(http.headers.get("content-length", 0)) > max_bytes:
        raise too_large(max_bytes)


async def _read_chunks(http: Request, max_bytes: int, on_chunk: Callable[[int], None]) -> bytes:
    body = bytearray()
    async for chunk in http.stream():
        on_chunk(len(chunk))
        body += chunk
        if len(body) > max_bytes:
            raise too_large(max_bytes)
    return bytes(body)


def too_large(max_bytes: int) -> ApiError:
    """Creates the error for a body of more than `max_bytes`."""
    return ApiError(f"the body is larger than {max_bytes:,} bytes", status=413, code="too_large")
