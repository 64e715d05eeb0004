"""Who may look: the administrator's key, shown once, becomes a cookie that no script and no other site can use."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rl_conductor.server.errors import ApiError
from rl_conductor.server.intake import collected
from rl_conductor.server.lookups import service_of
from rl_conductor.server.service import Service

COOKIE = "rl_conductor_session"
HOURS = 12
MOST_FORM_BYTES = 64 * 2**10
MOST_FIELDS = 16


def is_guarded(service: Service) -> bool:
    """Whether the pages need the administrator's key: wherever the API needs one, or one is set."""
    return bool(service.settings.keys) or service.settings.admin_sha256 is not None


async def visitor(http: Request) -> Service:
    """Let in who has signed in, or everybody on this machine where no key is set.

    Raises:
        ApiError: 401, when signing in is of use; 404, when there is no administrator's key to sign in with.
    """
    service = service_of(http)
    if not is_guarded(service):
        return service
    if service.settings.admin_sha256 is None:
        raise ApiError("set admin_sha256 in the settings to see these pages", status=404, code="no_admin")
    if not await service.store.is_admitted(_digest(http.cookies.get(COOKIE, ""))):
        raise ApiError("sign in with the administrator's key", status=401, code="signed_out")
    return service


Visited = Annotated[Service, Depends(visitor)]


async def admitted(http: Request, service: Service, key: str, next_page: str) -> Response:
    """The way in, with a cookie to come back with.

    Raises:
        ApiError: this is not the administrator's key.
    """
    service.keys.check_admin({"x-api-key": key})
    token = secrets.token_urlsafe(32)
    await service.store.admit(_digest(token), until=time.time() + HOURS * 3600)
    reply = RedirectResponse(_within(next_page), status_code=303)
    encrypted = http.headers.get("origin", "").startswith("https:")
    reply.set_cookie(COOKIE, token, max_age=HOURS * 3600, httponly=True, samesite="strict", secure=encrypted)
    return reply


async def dismissed(http: Request, service: Service) -> Response:
    """The way out; the cookie is worth nothing afterwards."""
    await service.store.dismiss(_digest(http.cookies.get(COOKIE, "")))
    reply = RedirectResponse("/sign-in", status_code=303)
    reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return reply


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _within(page: str) -> str:
    """`page` if it is one of ours: nobody is sent elsewhere by a link to us."""
    parts = urlsplit(page.replace("\\", "/"))
    elsewhere = parts.scheme or parts.netloc or not parts.path.startswith("/") or parts.path.startswith("//")
    return "/" if elsewhere else page


async def form(http: Request, service: Service) -> dict[str, str]:
    """The fields of a form that one of our own pages sent.

    Raises:
        ApiError: it comes from another site, or is no form, too large or too slow.
    """
    _check_same_origin(http)
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ApiError("send the form as its page does", status=415, code="no_form")
    body = await collected(http, most=MOST_FORM_BYTES, seconds=service.settings.intake.client_seconds)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise ApiError("this is no form of ours", status=400, code="no_form") from None


def _check_same_origin(http: Request) -> None:
    """A browser says where a form comes from; without keys there is no cookie that another site could not use."""
    site = http.headers.get("sec-fetch-site")
    origin = urlsplit(http.headers.get("origin", "")).netloc
    if site != "same-origin" and (site is not None or origin != http.headers.get("host")):
        raise ApiError("this form was not sent by a page of ours", status=403, code="other_site")
