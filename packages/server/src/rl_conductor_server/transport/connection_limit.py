"""Limits the connections and the requests in progress of a process, each of which takes an open file."""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rl_conductor_server.errors import DEFAULT_RETRY_AFTER, ApiError, openai_error_body
from rl_conductor_server.logs import QUIET_PATHS

log = logging.getLogger("rl_conductor_server")

REQUEST_SHARE = 3 / 4
"""The part of the connections that may have a request in progress, so that new ones can always send theirs."""
WARNING_SECONDS = 60.0
"""Minimum time between two warnings of one kind."""


class ConnectionLimit:
    """Limits connections: at the maximum, a new one takes the place of the one that has waited longest for a request.

    Whoever opens connections without a request, which needs no key, therefore keeps nobody out.
    """

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._waiting: dict[asyncio.Transport, None] = {}
        """The connections that wait for a request, or for the rest of its headers, the longest waiting first."""
        self._warning = _RareWarning()

    def add_waiting(self, connection: asyncio.Transport) -> None:
        """Notes that a connection begins to wait."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def remove_waiting(self, connection: asyncio.Transport) -> None:
        """Notes that a connection has sent a request, or is closed."""
        self._waiting.pop(connection, None)

    def make_room(self, open_connections: int) -> None:
        """Closes a waiting connection if there are more than the maximum."""
        if open_connections <= self.maximum:
            return
        self._warning.log("%d connections are open; idle ones are closed to make room for new ones", self.maximum)
        if self._waiting:
            longest = next(iter(self._waiting))
            self.remove_waiting(longest)
            longest.abort()


class RequestLimit:
    """Rejects requests beyond a part of the maximum of connections; only probes may use the rest of it."""

    def __init__(self, app: ASGIApp, max_connections: int) -> None:
        self._app = app
        self._max_connections = max_connections
        self._running = 0
        self._warning = _RareWarning()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        share = 1.0 if scope["path"] in QUIET_PATHS else REQUEST_SHARE
        if self._running >= share * self._max_connections:
            self._warning.log("%d requests are in progress; further ones are rejected", self._running)
            return await _busy_response()(scope, receive, send)
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1


class _RareWarning:
    """Logs a warning, unless it did so a moment ago."""

    def __init__(self) -> None:
        self._next = 0.0

    def log(self, message: str, *values: object) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + WARNING_SECONDS
            log.warning(message, *values)


def _busy_response() -> JSONResponse:
    message = "this server has too many requests in progress; try again later"
    error = ApiError(message, status=503, code="busy", retry_after=DEFAULT_RETRY_AFTER)
    return JSONResponse(openai_error_body(error), error.status, error.headers | {"connection": "close"})
