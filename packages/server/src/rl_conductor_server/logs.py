"""Structured logs: a line for each request and each run, as JSON or text. They contain no secrets and no bodies."""

from __future__ import annotations

import logging
import time
from typing import Any

from pythonjsonlogger.json import JsonFormatter
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rl_conductor_server.metrics import Metrics
from rl_conductor_server.settings import LogEntry

access_log = logging.getLogger("rl_conductor_server.access")
FIELDS = "rl_conductor_server.log"
"""The key in an ASGI scope under which a request's fields are collected."""
QUIET_PATHS = ("/healthz", "/readyz", "/metrics")
"""Paths that probes request all the time; they are logged only if they fail."""
TEXT_FIELDS = ("run", "key", "administrator", "model", "status", "seconds", "usd", "cause")
CLIENT_GONE = 499


def configure_logging(entry: LogEntry) -> None:
    """Sends all logs to stderr, in the format of the settings."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(entry))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("rl_conductor").setLevel(logging.INFO)
    logging.getLogger("rl_conductor_server").setLevel(logging.INFO)
    access_log.disabled = not entry.access


def formatter(entry: LogEntry) -> logging.Formatter:
    """Returns the formatter of the settings' format."""
    if entry.format == "text":
        return _TextFormatter()
    names = {"levelname": "level", "name": "logger"}
    return JsonFormatter("{message}{levelname}{name}", style="{", timestamp="time", rename_fields=names)


class _TextFormatter(logging.Formatter):
    """Appends the fields of a line as `name=value`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the base class's name
        fields = ((name, getattr(record, name, None)) for name in TEXT_FIELDS)
        return " ".join((super().formatMessage(record), *(f"{name}={value}" for name, value in fields if value)))


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
    route = getattr(scope.get("route"), "path", "other")  # a template, so that the number of labels is bounded
    metrics.count_request(route, fields["status"], seconds)
    method, path, status = scope["method"], scope["path"], fields["status"]
    if path in QUIET_PATHS and status < 400:
        return
    client = scope.get("client")
    details = {"method": method, "path": path, "seconds": round(seconds, 4), "client": client[0] if client else None}
    access_log.info("%s %s", method, path, extra=fields | details)
