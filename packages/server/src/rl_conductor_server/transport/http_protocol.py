"""uvicorn's HTTP protocol, with limits on connections, on the size of headers and on slow clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rl_conductor_server.transport.connection_limit import ConnectionLimit

MAX_CHUNKED_SIZE = 16
"""Maximum number of bytes that a client may send for each byte of the body; chunks of one byte take 6."""
TIMER_TOLERANCE = 0.01
"""Seconds by which a timer may fire too early."""


class LimitingProtocol(HttpToolsProtocol):
    """Closes connections of clients that send long headers, are too slow to send them or to read, or are too many.

    uvicorn and httptools have no such limits.
    """

    seconds = 30.0
    """Timeout for the headers of a request, and for reading a piece of a response."""
    idle_seconds = 75.0
    """Maximum time from the end of a response to the next request."""
    header_bytes = 64 * 2**10
    connection_limit: ConnectionLimit
    """Shared by all connections of a process."""
    _is_watched = False
    _has_resumed = False
    """Since the last check whether the client reads: then the response went on, however much of it is unread."""
    _deadline = 0.0
    """When the headers of the next request have to be complete, by the loop's clock."""
    _timer: asyncio.TimerHandle | None = None
    """The one timer of the connection, so that a busy connection keeps no finished requests alive."""
    _earlier_cycle: RequestResponseCycle
    """The request before the newest one whose headers are complete."""
    _part: Literal["head", "body"] | None = None
    """The part of a request that is incomplete."""
    _received_bytes = 0
    _body_bytes = 0
    _is_invalid = False
    """Whether the rest is ignored, and the connection closed as soon as the earlier requests have their responses."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.connection_limit.make_room(len(self.connections))
        self._expect_headers(self.seconds)

    def data_received(self, data: bytes) -> None:
        """Parses data, and rejects a request with too much that is not body: headers, trailers, chunk extensions."""
        if self._is_invalid:
            return
        self._received_bytes += len(data)
        super().data_received(data)
        surplus = self._received_bytes - MAX_CHUNKED_SIZE * self._body_bytes
        if self._part is not None and surplus > self.header_bytes:
            self.send_400_response(self._size_fault)

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
        """Starts the request, unless its headers are reason to reject it."""
        if (reason := self._find_fault()) is not None:
            self.send_400_response(reason)
            raise HttpParserError(reason)  # makes the parser stop
        self._earlier_cycle = self.cycle
        super().on_headers_complete()
        self._part = "body"
        self._stop_timer()
        self.connection_limit.remove_waiting(self.transport)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._part, self._received_bytes, self._body_bytes = None, 0, 0

    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing: uvicorn would advise to install a library for WebSockets, which the server does not have."""

    def send_400_response(self, msg: str) -> None:
        """Rejects a request. While a response is in progress, its client would take the rejection for a part of it."""
        if self.transport.is_closing():  # the request was rejected already
            return
        if self._part == "body" and self.pipeline:  # this request waits for the responses to earlier ones
            self.pipeline.popleft()
            self.cycle, self._part = self._earlier_cycle, None
        if self._part == "body" and self.cycle.response_started:
            self.transport.close()
        elif self._part != "body" and self._is_responding:  # to an earlier request
            self._is_invalid = True
            self.cycle.keep_alive = False
        else:
            super().send_400_response(msg)

    def _find_fault(self) -> str | None:
        """Describes the fault of the headers: they may be too large and have arrived together with the body."""
        separators = len(": ") + len("\r\n")
        if len(self.url) + sum(len(name) + len(value) + separators for name, value in self.headers) > self.header_bytes:
            return self._size_fault
        if self.parser.should_upgrade() and _has_body(dict(self.headers)):  # the parser would not read the body
            return "Send requests with a body without the header 'upgrade': this server speaks HTTP/1.1."
        if sum(name == b"host" for name, _ in self.headers) > 1:  # a proxy may have checked another one
            return "Send one header 'host'."
        return None

    @property
    def _size_fault(self) -> str:
        return f"The headers are larger than {self.header_bytes:,} bytes."

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_headers(self.idle_seconds if self._part is None else self.seconds)
        if self.transport.get_write_buffer_size():
            self._start_timer(self.seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()
        self.connection_limit.remove_waiting(self.transport)

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
        if not self._is_responding:
            self.connection_limit.add_waiting(self.transport)

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


def _has_body(headers: Mapping[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
