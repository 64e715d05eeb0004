"""Lets the pages of listed websites read the API from a browser."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send


class ApiCors(CORSMiddleware):
    """CORS for the API alone, since the pages, if there are no keys, show an administrator's view to everybody."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        """All headers are allowed, as the vendors' clients send and read many; cookies are not."""
        methods = ("GET", "POST", "DELETE")
        super().__init__(app, allow_origins=origins, allow_methods=methods, allow_headers=["*"], expose_headers=["*"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = super().__call__ if is_api(scope) else self.app
        await handle(scope, receive, send)


def is_api(scope: Scope) -> bool:
    """Returns `True` if a request is for the API or its description, and not for a page or an administrator."""
    path: str = scope.get("path", "")
    return scope["type"] == "http" and path.startswith(("/v1/", "/openapi.json"))
