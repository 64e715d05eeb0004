"""Limits the connections and the requests in progress of a process, each of which takes an open file."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rl_conductor_server.errors import DEFAULT_RETRY_AFTER, ApiError, error_body
from rl_conductor_server.transport.access_log import QUIET_PATHS, add_log_fields
from rl_conductor_server.transport.key_share import limit_of_key, release

log = logging.getLogger("rl_conductor_server")

REQUEST_SHARE = 3 / 4
"""The part of the connections that may have a request in progress, so that new ones can always send theirs."""
COUNT_FOR_KEY = "rl_conductor_server.count_for_key"
"""The key in an ASGI scope of the function that counts the request for its API key."""
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
    """Rejects requests beyond a part of the maximum of connections; only probes may use the rest of it.

    If there are several API keys, each may have `KEY_SHARE` of what the others leave of that part in progress, so that
    no number of keys takes all of it; see `count_for_key`.
    """

    def __init__(self, app: ASGIApp, max_connections: int) -> None:
        self._app = app
        self._max_connections = max_connections
        self._running = 0
        self._by_key = Counter[str]()
        self._warning = _RareWarning()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        share = 1.0 if scope["path"] in QUIET_PATHS else REQUEST_SHARE
        if self._running >= share * self._max_connections:
            self._warning.log("%d requests are in progress; further ones are rejected", self._running)
            return await _busy_response(HTTPConnection(scope))(scope, receive, send)
        self._running += 1
        with ExitStack() as counted:
            scope[COUNT_FOR_KEY] = partial(self._count_for_key, counted)
            try:
                await self._app(scope, receive, send)
            finally:
                self._running -= 1

    def _count_for_key(self, counted: ExitStack, key: str, *, is_shared: bool) -> None:
        """Counts a request for its key until `counted` is closed. Raises `ApiError` if the key has too many."""
        running = self._by_key[key]
        left_by_others = REQUEST_SHARE * self._max_connections - (self._by_key.total() - running)
        if is_shared and running >= max(1, limit_of_key(left_by_others, is_shared=True)):
            message = f"{running} requests of this key are in progress; try again later"
            raise ApiError(message, status=429, code="busy", retry_after=DEFAULT_RETRY_AFTER)
        self._by_key[key] += 1
        counted.callback(release, self._by_key, key)


def count_for_key(http: HTTPConnection, key: str, *, is_shared: bool) -> None:
    """Counts a request for the API key of this name until it is answered, where a `RequestLimit` is in use.

    Args:
        http: the request.
        key: the name of its key.
        is_shared: limits the key to `KEY_SHARE` of what others leave, because there are some.

    Raises:
        ApiError: too many requests of the key are in progress.
    """
    if (count := http.scope.get(COUNT_FOR_KEY)) is not None:
        count(key, is_shared=is_shared)


class _RareWarning:
    """Logs a warning, unless it did so a moment ago."""

    def __init__(self) -> None:
        self._next = 0.0

    def log(self, message: str, *values: object) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + WARNING_SECONDS
            log.warning(message, *values)


def _busy_response(http: HTTPConnection) -> JSONResponse:
    message = "this server has too many requests in progress; try again later"
    error = ApiError(message, status=503, code="busy", retry_after=DEFAULT_RETRY_AFTER)
    add_log_fields(http, cause=error.code)
    return JSONResponse(error_body(http, error), error.status, error.headers | {"connection": "close"})
