"""The router of the pages: renders errors as pages and redirects signed-out visitors to the sign-in page."""

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
from rl_conductor_server.errors import STORE_ERRORS, invalid_request, to_api_error
from rl_conductor_server.transport.access_log import add_log_fields
from rl_conductor_server.web.rendering import SECURITY_HEADERS, Page

SIGNED_OUT = "signed_out"
"""Error code that leads to the sign-in page."""


def page_router() -> APIRouter:
    """Returns a router that renders errors of its routes as pages."""
    return APIRouter(route_class=_PageRoute, include_in_schema=False)


class _PageRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_errors(http: Request) -> Response:
            try:
                return await handle(http)
            except RequestValidationError:
                return error_page(http, invalid_request("This address is invalid. Check the link."))
            except (ConductorError, *STORE_ERRORS) as error:
                return error_page(http, error)

        return handle_errors


def error_page(http: Request, error: Exception) -> Response:
    """Renders an error, or redirects a visitor to the sign-in."""
    translated = to_api_error(error)
    if translated.code == SIGNED_OUT and http.method == "GET" and wants_page(http):
        requested_page = http.url.path + (f"?{http.url.query}" if http.url.query else "")
        return see_other(f"/sign-in?{urlencode({'next': requested_page})}")
    add_log_fields(http, cause=translated.code)
    return Page("error.html", status=translated.status, headers=translated.headers, error=translated)


def wants_page(http: Request) -> bool:
    """Returns whether a browser asks for a page, and not a program for data."""
    return "text/html" in http.headers.get("accept", "")


def see_other(page: str) -> RedirectResponse:
    """Redirects to `page` with status 303, as a reply to a form."""
    return RedirectResponse(page, status_code=303, headers=SECURITY_HEADERS)
