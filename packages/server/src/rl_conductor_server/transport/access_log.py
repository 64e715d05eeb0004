"""`AccessLog`: logs and counts each request when its response has been sent."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from starlette.requests import HTTPConnection
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rl_conductor_server.logs import access_log
from rl_conductor_server.metrics import Metrics

FIELDS = "rl_conductor_server.log"
"""The key in an ASGI scope under which a request's fields are collected."""
QUIET_PATHS = ("/healthz", "/readyz", "/metrics")
"""Paths that probes request all the time; they are logged only if they fail."""
CLIENT_GONE = 499
MAX_PATH_CHARS = 1000
"""Characters of a path that are logged: without a key, a client may send 64 KiB of them."""
PATH_CHARS = "/:@-._~!$&'()*+,;="
"""Characters that a path may have unencoded, by RFC 3986."""


def add_log_fields(http: HTTPConnection, **fields: str) -> None:
    """Adds fields to the line of a request, such as the name of its API key."""
    http.scope.get(FIELDS, {}).update(fields)


class AccessLog:
    """Logs and counts each request when its response has been sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        fields: dict[str, Any] = {"status": CLIENT_GONE}
        scope[FIELDS] = fields
        started = time.monotonic()

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                fields["status"] = message["status"]
                headers = dict(message.get("headers", ()))
                if run := headers.get(b"x-conductor-run"):
                    fields["run"] = run.decode()
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            _log_request(scope, fields, time.monotonic() - started)


def _log_request(scope: Scope, fields: dict[str, Any], seconds: float) -> None:
    metrics: Metrics = scope["app"].state.service.metrics
    metrics.count_request(_route_path(scope), fields["status"], seconds)
    method, path, status = scope["method"], quote(scope["path"][:MAX_PATH_CHARS], safe=PATH_CHARS), fields["status"]
    if path in QUIET_PATHS and status < 400:
        return
    client = scope.get("client")
    details = {"method": method, "path": path, "seconds": round(seconds, 4), "client": client[0] if client else None}
    access_log.info("%s %s", method, path, extra=fields | details)


def _route_path(scope: Scope) -> str:
    """Returns the template of a request's path, so that the number of labels is bounded."""
    if (route := scope.get("route")) is None:  # it was rejected before the router looked for one
        route = next((each for each in scope["app"].routes if each.matches(scope)[0] is Match.FULL), None)
    return getattr(route, "path", "other")
