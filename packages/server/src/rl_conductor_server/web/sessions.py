"""Who may look: the administrator's key, shown once, becomes a cookie that no script and no other site can use."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response

from rl_conductor_server.endpoints.lookups import Shared
from rl_conductor_server.errors import ApiError
from rl_conductor_server.service import Service
from rl_conductor_server.web.forms import Form
from rl_conductor_server.web.rendering import Page
from rl_conductor_server.web.routing import SIGNED_OUT, page_router, see_other

COOKIE = "rl_conductor_session"
HOURS = 12

router = page_router()


def is_guarded(service: Service) -> bool:
    """Whether the pages need the administrator's key: wherever the API needs one, or one is set."""
    return bool(service.settings.keys) or service.settings.admin_sha256 is not None


async def visitor(http: Request, service: Shared) -> Service:
    """Let in who has signed in, or everybody on this machine where no key is set.

    Raises:
        ApiError: 401, when signing in is of use; 404, when there is no administrator's key to sign in with.
    """
    if not is_guarded(service):
        return service
    if service.settings.admin_sha256 is None:
        raise ApiError("Set admin_sha256 in the settings to see these pages.", status=404, code="no_admin")
    if not await service.store.sessions.is_admitted(_digest(http, service)):
        raise ApiError("Sign in with the administrator's key.", status=401, code=SIGNED_OUT)
    return service


Visited = Annotated[Service, Depends(visitor)]


@router.get("/sign-in")
async def ask_for_the_key(next: str = "/") -> Response:  # noqa: A002  the field's own name
    """Where the administrator's key is shown."""
    return Page("sign_in.html", next=same_site_page(next), refused=None)


@router.post("/sign-in")
async def sign_in(http: Request, service: Shared, form: Form) -> Response:
    """Give whoever brings the administrator's key a cookie to come back with."""
    wanted = same_site_page(form.get("next", "/"))
    try:
        service.keys.check_admin(http, form.get("key", ""))
    except ApiError as error:
        return Page("sign_in.html", status=error.status, headers=error.headers, next=wanted, refused=str(error))
    token = secrets.token_urlsafe(32)
    await service.store.sessions.admit(_hashed(token, service), until=time.time() + HOURS * 3600)
    reply = see_other(wanted)
    encrypted = http.headers.get("origin", "").startswith("https:")
    reply.set_cookie(COOKIE, token, max_age=HOURS * 3600, httponly=True, samesite="strict", secure=encrypted)
    return reply


@router.post("/sign-out")
async def sign_out(http: Request, service: Shared, _: Form) -> Response:
    """Forget this browser: its cookie is worth nothing from now on."""
    await service.store.sessions.dismiss(_digest(http, service))
    reply = see_other("/sign-in")
    reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return reply


def _digest(http: Request, service: Service) -> str:
    return _hashed(http.cookies.get(COOKIE, ""), service)


def _hashed(token: str, service: Service) -> str:
    """What is kept of a cookie. It is worth nothing once the administrator's key is another."""
    return hashlib.sha256(f"{service.settings.admin_sha256} {token}".encode()).hexdigest()


def same_site_page(page: str) -> str:
    """Returns `page` if browsers take it for a page of this site, else the first page.

    Browsers read a backslash as a slash, two slashes as the beginning of another host, and drop tabs and line breaks;
    a proxy in front may decode the path first. Our own paths contain none of these, however they are written.
    """
    path = page.partition("?")[0].partition("#")[0]
    decoded = unquote(path)
    is_plain = page.isprintable() and decoded.isprintable() and not any(mark in decoded for mark in ("\\", "//", "%"))
    return page if path.startswith("/") and is_plain else "/"
