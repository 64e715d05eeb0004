"""How requests come in: no larger, no slower and from no further than allowed, and not after their caller has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from rl_conductor_server.errors import ApiError

T = TypeVar("T")

KEY_CHARS = 255


async def read(http: Request, *, most: int, seconds: float) -> bytes:
    """The body of a request.

    Raises:
        ApiError: it is no JSON, larger than `most` bytes or slower than `seconds`.
        ClientDisconnect: the caller has gone.
    """
    if media_type(http) != "application/json":
        raise ApiError("send the body as content-type: application/json", status=415, code="not_json")
    return await collected(http, most=most, seconds=seconds)


def media_type(http: Request) -> str:
    """The kind of body that a request says it has; empty when it says none."""
    return http.headers.get("content-type", "").partition(";")[0].strip().lower()


async def collected(http: Request, *, most: int, seconds: float) -> bytes:
    """The body of a request of any kind.

    Raises:
        ApiError: it is larger than `most` bytes or slower than `seconds`.
        ClientDisconnect: the caller has gone.
    """
    if int(http.headers.get("content-length", "0")) > most:
        raise _too_large(most)
    try:
        async with asyncio.timeout(seconds):
            return await _collected(http, most)
    except TimeoutError:
        raise ApiError(f"the body took more than {seconds:g} s", status=408, code="slow_body") from None


async def _collected(http: Request, most: int) -> bytes:
    body = bytearray()
    async for chunk in http.stream():
        body += chunk
        if len(body) > most:
            raise _too_large(most)
    return bytes(body)


def _too_large(most: int) -> ApiError:
    return ApiError(f"the body is larger than {most:,} bytes", status=413, code="too_large")


def idempotency_key(http: Request) -> str | None:
    """The caller's own name for this request.

    Raises:
        ApiError: it is longer than we keep.
    """
    name = http.headers.get("idempotency-key") or None
    if name is not None and len(name) > KEY_CHARS:
        raise ApiError(f"Idempotency-Key is longer than {KEY_CHARS} characters", status=400, code="invalid_value")
    return name


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the caller hangs up.

    Raises:
        ClientDisconnect: the caller hung up.
    """
    gone = asyncio.create_task(_gone(receive))
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.wait({gone, doing}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        for task in (gone, doing):
            task.cancel()
        await asyncio.gather(gone, doing, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class PatientProtocol(H11Protocol):
    """Hangs up on a client that takes too long to send its headers, or stops reading; uvicorn would wait for ever."""

    seconds = 30.0
    _watched = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        self._expect_a_request()

    def on_response_complete(self) -> None:
        """It may send another request."""
        super().on_response_complete()
        self._expect_a_request()

    def pause_writing(self) -> None:
        """It is slow to read. When its stream is cut off for that, closing would still wait until all is read."""
        super().pause_writing()
        if not self._watched:
            self._watched = True
            self.loop.call_later(self.seconds, self._hang_up_if_unread, self.transport.get_write_buffer_size())

    def _hang_up_if_unread(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= before and self.transport.is_closing():
            self.transport.abort()
        elif left:
            self.loop.call_later(self.seconds, self._hang_up_if_unread, left)
        else:
            self._watched = False

    def _expect_a_request(self) -> None:
        self.loop.call_later(self.seconds, self._hang_up_if_still, self.cycle)

    def _hang_up_if_still(self, before: RequestResponseCycle | None, unread: int | None = None) -> None:
        if self.cycle is not before:
            return
        left = self.transport.get_write_buffer_size()
        if left and (unread is None or left < unread):  # it is still reading the last answer
            self.loop.call_later(self.seconds, self._hang_up_if_still, before, left)
        elif left:
            self.transport.abort()
        else:
            self.transport.close()
