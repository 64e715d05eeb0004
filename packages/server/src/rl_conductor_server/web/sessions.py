"""Sign-in: exchanges the administrator's key for a session cookie that is HttpOnly and SameSite=strict."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response

from rl_conductor_server.auth.keys import hash_key
from rl_conductor_server.endpoints.dependencies import ServiceDependency
from rl_conductor_server.errors import ApiError
from rl_conductor_server.service import Service
from rl_conductor_server.web.forms import Form
from rl_conductor_server.web.rendering import Page
from rl_conductor_server.web.routing import SIGNED_OUT, page_router, see_other

COOKIE = "rl_conductor_session"
SESSION_SECONDS = 12 * 3600

router = page_router()


def requires_sign_in(service: Service) -> bool:
    """True where the API needs keys or there is an administrator."""
    return service.keys.is_required or bool(service.keys.admin_hashes)


async def signed_in_service(http: Request, service: ServiceDependency) -> Service:
    """Returns the service if the visitor is signed in or no key is set.

    Raises:
        ApiError: 401, when signing in is possible; 404, when there is no administrator.
    """
    if not requires_sign_in(service):
        return service
    if not service.keys.admin_hashes:
        message = "Create an administrator's key with 'rl-conductor keys create NAME --admin' to open these pages."
        raise ApiError(message, status=404, code="no_admin")
    if not await service.store.sessions.is_valid(_session_digests(http, service)):
        raise ApiError("Sign in with the administrator's key.", status=401, code=SIGNED_OUT)
    return service


SignedIn = Annotated[Service, Depends(signed_in_service)]


@router.get("/sign-in")
async def show_sign_in(next: str = "/") -> Response:  # noqa: A002  the form field's name
    return Page("sign_in.html", next=same_site_page(next), error=None)


@router.post("/sign-in")
async def sign_in(http: Request, service: ServiceDependency, form: Form) -> Response:
    """Checks the administrator's key, sets the session cookie and redirects to the requested page."""
    next_page = same_site_page(form.get("next", "/"))
    try:
        service.keys.check_admin(http, form.get("key", ""))
    except ApiError as error:
        return Page("sign_in.html", status=error.status, headers=error.headers, next=next_page, error=str(error))
    token = secrets.token_urlsafe(32)
    admin_hash = hash_key(form.get("key", ""))
    await service.store.sessions.add(_token_digest(token, admin_hash), expires=time.time() + SESSION_SECONDS)
    reply = see_other(next_page)
    is_https = http.headers.get("origin", "").startswith("https:")
    reply.set_cookie(COOKIE, token, max_age=SESSION_SECONDS, httponly=True, samesite="strict", secure=is_https)
    return reply


@router.post("/sign-out")
async def sign_out(http: Request, service: ServiceDependency, _: Form) -> Response:
    """Revokes the session and deletes its cookie."""
    await service.store.sessions.delete(_session_digests(http, service))
    reply = see_other("/sign-in")
    reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return reply


def _session_digests(http: Request, service: Service) -> list[str]:
    """Returns the digests that the session's cookie may have, one for each administrator."""
    token = http.cookies.get(COOKIE, "")
    return [_token_digest(token, admin_hash) for admin_hash in service.keys.admin_hashes]


def _token_digest(token: str, admin_hash: str) -> str:
    """Hashes a session token with the hash of the administrator's key, so that its end revokes the sessions, too."""
    return hashlib.sha256(f"{admin_hash} {token}".encode()).hexdigest()


def same_site_page(page: str) -> str:
    """Returns `page` if it is a path on this site, else `/`: guards against open redirects.

    Browsers read a backslash as a slash and two slashes as the start of another host, and drop tabs and line breaks; a
    proxy may decode the path first. None of our own paths contain any of these, encoded or not.
    """
    path = page.partition("?")[0].partition("#")[0]
    decoded = unquote(path)
    is_plain = page.isprintable() and decoded.isprintable() and not any(mark in decoded for mark in ("\\", "//", "%"))
    return page if path.startswith("/") and is_plain else "/"
