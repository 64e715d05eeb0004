"""Rejects requests that no client sends of its own accord, before anything reads them."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rl_conductor_server.errors import ApiError, error_body
from rl_conductor_server.transport.access_log import add_log_fields
from rl_conductor_server.transport.cors import is_api

LOOPBACK_NAMES = ["127.0.0.1", "localhost", "[::1]"]
"""The only accepted `Host` headers while no API key is needed: a website could reach the server by DNS rebinding."""
AMBIGUOUS = "ambiguous_length"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class RequestGuard:
    """Rejects requests of ambiguous length and, while no API key is needed, those that websites cause."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        """Requests of websites with these `origins` for the API are not rejected."""
        self._app = app
        self._origins = origins
        self._local = TrustedHostMiddleware(app, allowed_hosts=LOOPBACK_NAMES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers, is_open = Headers(scope=scope), not scope["app"].state.service.keys.is_required
        origins = self._origins if is_api(scope) else ()
        error = _find_error(headers, scope["method"], is_open=is_open, origins=origins)
        if error is not None:
            http = HTTPConnection(scope)
            add_log_fields(http, cause=error.code)
            close = {"connection": "close"} if error.code == AMBIGUOUS else {}
            response = JSONResponse(error_body(http, error), error.status, error.headers | close)
            return await response(scope, receive, send)
        return await (self._local if is_open else self._app)(scope, receive, send)


def _find_error(headers: Headers, method: str, *, is_open: bool, origins: Collection[str]) -> ApiError | None:
    if "transfer-encoding" in headers and "content-length" in headers:
        # A proxy that believes the other one would take a part of the body for the next request.
        message = "send either content-length or transfer-encoding, not both"
        return ApiError(message, status=400, code=AMBIGUOUS)
    if is_open and method not in SAFE_METHODS and _is_cross_site(headers) and headers.get("origin") not in origins:
        message = "without API keys, requests from other websites are rejected; create a key or write [web] origins"
        return ApiError(message, status=403, code="other_site")
    return None


def _is_cross_site(headers: Headers) -> bool:
    """Returns `True` if a browser says that another site than this one sent the request; other clients say nothing."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and not _is_local(origin)


def _is_local(origin: str) -> bool:
    try:
        return urlsplit(origin).hostname in ("127.0.0.1", "localhost", "::1")
    except ValueError:  # brackets without a partner, or characters that no host has
        return False
