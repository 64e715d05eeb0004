"""Responses in pieces, at the pace of the client, and how many of them may be open."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager

from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from rl_conductor_server.errors import ApiError
from rl_conductor_server.transport.key_share import release

log = logging.getLogger("rl_conductor_server")

PIECE_BYTES = 2**16
"""Size of the pieces in which a large body is sent."""
RETRY_AFTER = 5.0
"""Seconds after which a client with too many open streams may try again."""


class StreamLimit:
    """Limits the open streams that read the store at intervals, for each client."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._open = Counter[str]()

    @property
    def count(self) -> int:
        """The number of open streams of all clients."""
        return self._open.total()

    @contextmanager
    def reserve(self, client: str) -> Iterator[None]:
        """Counts a stream for the duration of the block. Raises `ApiError` if the client has too many."""
        if self._open[client] >= self._maximum:
            message = f"{self._maximum} streams are open; close one, or try again later"
            raise ApiError(message, status=429, code="too_many_streams", retry_after=RETRY_AFTER)
        self._open[client] += 1
        try:
            yield
        finally:
            release(self._open, client)


class TimedStream(StreamingResponse):
    """A response in pieces that disconnects slow clients."""

    def __init__(
        self,
        content: AsyncGenerator[str | bytes, None],
        *,
        timeout: float,
        on_close: Callable[[], None],
        headers: dict[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        """`timeout` is in seconds, for each piece; `on_close` is always called at the end."""
        super().__init__(content, headers=headers, media_type=media_type)
        self._timeout = timeout
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()

    async def stream_response(self, send: Send) -> None:
        async def send_with_timeout(message: Message) -> None:
            async with asyncio.timeout(self._timeout):
                await send(message)

        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            try:
                await super().stream_response(send_with_timeout)
            except TimeoutError:
                log.warning("a client took more than %g s to read a piece; its stream was closed", self._timeout)


UNBUFFERED = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
"""Headers that make proxies pass each event on at once: the first forbids to compress them, the second is nginx's."""


class EventStream(TimedStream):
    """A response of server-sent events."""

    media_type = "text/event-stream"

    def __init__(
        self,
        content: AsyncGenerator[str, None],
        *,
        timeout: float,
        on_close: Callable[[], None],
        headers: dict[str, str],
    ) -> None:
        super().__init__(content, timeout=timeout, on_close=on_close, headers=headers | UNBUFFERED)


def in_pieces(response: Response, *, timeout: float, on_close: Callable[[], None]) -> TimedStream:
    """Returns a response with the same body, which is sent in pieces; the arguments are those of `TimedStream`."""
    return TimedStream(_split(bytes(response.body)), timeout=timeout, on_close=on_close, headers=dict(response.headers))


async def _split(body: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]
