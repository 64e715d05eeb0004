"""Reads request bodies with limits of size and time, and cancels work when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rl_conductor_server.errors import ApiError

T = TypeVar("T")

MAX_KEY_CHARS = 255
MAX_CHUNKED_SIZE = 16
"""Maximum number of bytes that a client may send for each byte of the body; chunks of one byte take 6."""


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
        ApiError: the body is larger than `max_bytes`, or takes more than `seconds`.
        ClientDisconnect: the client has disconnected.
    """
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


def read_idempotency_key(http: Request) -> str | None:
    """Returns the header `Idempotency-Key`.

    Raises:
        ApiError: it is longer than the store's column.
    """
    key = http.headers.get("idempotency-key") or None
    if key is not None and len(key) > MAX_KEY_CHARS:
        raise ApiError(f"Idempotency-Key is longer than {MAX_KEY_CHARS} characters", status=400, code="invalid_value")
    return key


def wants_cached(http: Request) -> bool:
    """Returns `False` if the header `Cache-Control` asks for a new answer."""
    directives = {part.strip().lower() for part in http.headers.get("cache-control", "").split(",")}
    return not directives & {"no-cache", "no-store", "max-age=0"}


async def run_until_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """Returns the result of `work`, or cancels it when the client disconnects.

    Raises:
        ClientDisconnect: the client has disconnected.
    """
    disconnect = asyncio.create_task(_wait_for_disconnect(receive))
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({disconnect, task}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for pending in (disconnect, task):
            pending.cancel()
        await asyncio.gather(disconnect, task, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


TIMER_TOLERANCE = 0.01
"""Seconds by which a timer may fire too early."""


class LimitingProtocol(HttpToolsProtocol):
    """Closes connections of clients that send long headers, or are too slow to send them or to read.

    uvicorn and httptools have no such limits.
    """

    seconds = 30.0
    """For the headers of a request, and for reading a piece of a response."""
    idle_seconds = 75.0
    """From the end of a response to the next request."""
    header_bytes = 64 * 2**10
    _is_watched = False
    _has_resumed = False
    """Since the last check whether the client reads: then the response went on, however much of it is unread."""
    _deadline = 0.0
    """When the headers of the next request have to be complete, by the loop's clock."""
    _timer: asyncio.TimerHandle | None = None
    """The one timer of the connection, so that a busy connection keeps no finished requests alive."""
    _part: Literal["head", "body"] | None = None
    """What has begun of a request and is incomplete."""
    _received_bytes = 0
    _body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers(self.seconds)

    def data_received(self, data: bytes) -> None:
        """Parses data, and rejects a request with too much that is not body: headers, trailers, chunk extensions."""
        self._received_bytes += len(data)
        super().data_received(data)
        surplus = self._received_bytes - MAX_CHUNKED_SIZE * self._body_bytes
        if self._part is not None and surplus > self.header_bytes:
            if self._part == "body" and self.cycle.response_started:
                self.transport.close()
            else:
                self.send_400_response(f"The headers are larger than {self.header_bytes:,} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._part = "head"
        if not self._is_responding:  # otherwise the end of the response starts the timer
            self._expect_headers(self.seconds)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Stores a header. Trailers are ignored: they would be added to headers that were read already."""
        if self._part == "head":
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._part = "body"
        self._stop_timer()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._part, self._received_bytes, self._body_bytes = None, 0, 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_headers(self.idle_seconds if self._part is None else self.seconds)
        if self.transport.get_write_buffer_size():
            self._start_timer(self.seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def pause_writing(self) -> None:
        """Starts a timeout for a client that reads slowly: the response, or closing the transport, waits for it."""
        super().pause_writing()
        if not self._is_watched:
            self._is_watched = True
            self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._has_resumed = True

    def _watch(self) -> None:
        self._has_resumed = False
        self.loop.call_later(self.seconds, self._abort_if_stalled, self.transport.get_write_buffer_size())

    def _abort_if_stalled(self, previous_size: int) -> None:
        size = self.transport.get_write_buffer_size()
        is_waiting = self.transport.is_closing() or (self.flow.write_paused and not self._has_resumed)
        if size >= previous_size and is_waiting:
            self.transport.abort()
        elif size:
            self._watch()
        else:
            self._is_watched = False

    @property
    def _is_responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_headers(self, seconds: float) -> None:
        """Closes the connection unless the headers of another request are complete after `seconds`."""
        self._deadline = self.loop.time() + seconds
        self._start_timer(seconds)

    def _start_timer(self, seconds: float, unread_bytes: int | None = None) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._close_if_idle, unread_bytes)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self, previous_size: int | None) -> None:
        if self._is_responding:  # to a request that was sent before the last response was complete
            return
        size = self.transport.get_write_buffer_size()
        if size and (previous_size is None or size < previous_size):  # the client still reads the last response
            self._start_timer(self.seconds, size)
        elif size:
            self.transport.abort()
        elif (remaining := self._deadline - self.loop.time()) > TIMER_TOLERANCE:
            self._start_timer(remaining)
        else:
            self.transport.close()
