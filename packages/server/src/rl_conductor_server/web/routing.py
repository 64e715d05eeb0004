"""How the pages tell what went wrong: as a page, and to strangers by showing them where to sign in."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rl_conductor.errors import ConductorError
from rl_conductor_server.errors import api_error, refused
from rl_conductor_server.web.rendering import SECURITY, Page

SIGNED_OUT = "signed_out"
"""Code of the error that signing in mends."""


def page_router(**options: Any) -> APIRouter:
    """A router whose routes are pages."""
    return APIRouter(route_class=_PageRoute, include_in_schema=False, **options)


class _PageRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The endpoint, and what is told when it fails."""
        answer = super().get_route_handler()

        async def handle(http: Request) -> Response:
            try:
                return await answer(http)
            except RequestValidationError:
                return _refusal(http, refused("This address can't be read."))
            except ConductorError as error:
                return _refusal(http, error)

        return handle


def _refusal(http: Request, error: ConductorError) -> Response:
    known = api_error(error)
    if known.code == SIGNED_OUT and http.method == "GET" and "text/html" in http.headers.get("accept", ""):
        wanted = http.url.path + (f"?{http.url.query}" if http.url.query else "")
        return see_other(f"/sign-in?{urlencode({'next': wanted})}")
    return Page("refusal.html", status=known.status, headers=known.headers, error=known)


def see_other(page: str) -> RedirectResponse:
    """On to another page."""
    return RedirectResponse(page, status_code=303, headers=SECURITY)
