"""Sign-in: exchanges an administrator's key, or a sign-in at an OpenID Connect provider, for a session cookie.

The session cookie is HttpOnly and SameSite=strict.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response

from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.endpoints.dependencies import ServiceDependency
from rl_conductor_server.errors import ApiError
from rl_conductor_server.service import Service
from rl_conductor_server.settings import OidcEntry
from rl_conductor_server.settings.sign_in import SIGN_IN_SECONDS
from rl_conductor_server.transport.access_log import add_log_fields
from rl_conductor_server.web.forms import Form
from rl_conductor_server.web.rendering import Page, Visitor
from rl_conductor_server.web.routing import SIGNED_OUT, page_router, see_other

if TYPE_CHECKING:
    from rl_conductor_server.auth.oidc import Identity, OidcClient

COOKIE = "rl_conductor_session"
SESSION_SECONDS = 12 * 3600
LOGIN_COOKIE = "rl_conductor_sign_in"
CALLBACK = "/sign-in/callback"
PROVIDER = "oidc"
"""Takes the place of the hash of an administrator's key in the digest of a session."""

log = logging.getLogger("rl_conductor_server.web")

router = page_router()


def requires_sign_in(service: Service) -> bool:
    """True where the API needs keys, or there is an administrator or a provider."""
    return service.keys.is_required or bool(service.keys.admin_hashes) or service.oidc is not None


async def signed_in_visitor(http: Request, service: ServiceDependency) -> Visitor:
    """Returns the visitor: an administrator if no key is set.

    Raises:
        ApiError: 401, when signing in is possible; 404, when there is no administrator.
    """
    if not requires_sign_in(service):
        return Visitor(service, can_sign_out=False)
    if not service.keys.admin_hashes and service.oidc is None:
        message = "Create an administrator's key with 'rl-conductor keys create NAME --admin' to open these pages."
        raise ApiError(message, status=404, code="no_admin")
    if await service.store.sign_ins.is_valid(_session_digests(http, service)):
        return Visitor(service, can_sign_out=True)
    visitor = await _provider_visitor(http, service)
    if visitor is None:
        raise ApiError("Sign in to open these pages.", status=401, code=SIGNED_OUT)
    return visitor


async def _provider_visitor(http: Request, service: Service) -> Visitor | None:
    """Returns the visitor of a session of the provider, with the rights that the settings give them now."""
    entry = service.settings.oidc
    stored = await service.store.sign_ins.find_identity(_provider_digest(http)) if entry else None
    if entry is None or stored is None:
        return None
    identity = json.loads(stored)
    email = identity.get("email")
    is_allowed, key = entry.role_of(email, identity.get("groups", ()))
    return Visitor(service, can_sign_out=True, name=email, key=key) if is_allowed else None


async def signed_in_administrator(visitor: Annotated[Visitor, Depends(signed_in_visitor)]) -> Visitor:
    """Returns the visitor. Raises `ApiError` if they may only see the runs of one key."""
    if not visitor.is_admin:
        raise ApiError("Only administrators may see or do this.", status=403, code="administrators_only")
    return visitor


SignedIn = Annotated[Visitor, Depends(signed_in_visitor)]
AdministratorPage = Annotated[Visitor, Depends(signed_in_administrator)]


@router.get("/sign-in")
async def show_sign_in(service: ServiceDependency, next: str = "/") -> Response:  # noqa: A002  the form field's name
    return _sign_in_page(service, same_site_page(next), None)


def _refused(http: Request, service: Service, next_page: str, error: ApiError) -> Page:
    add_log_fields(http, cause=error.code)
    return _sign_in_page(service, next_page, error)


def _sign_in_page(service: Service, next_page: str, error: ApiError | None) -> Page:
    """Renders the ways to sign in: with a key, at the provider, or both."""
    return Page(
        "sign_in.html",
        status=200 if error is None else error.status,
        headers={} if error is None else error.headers,
        next=next_page,
        error=None if error is None else str(error),
        has_provider=service.oidc is not None,
        has_keys=bool(service.keys.admin_hashes) or service.oidc is None,
    )


@router.get("/sign-in/provider")
async def begin_provider_sign_in(
    http: Request,
    service: ServiceDependency,
    next: str = "/",  # noqa: A002  as above
) -> Response:
    """Redirects to the provider."""
    oidc, entry = _provider(service)
    callback = _callback_address(entry, http)
    address, cookie = await oidc.begin(callback, same_site_page(next), now=service.store.now())
    reply = see_other(address)
    # The provider's answer comes from another site, to which browsers don't send a strict cookie.
    reply.set_cookie(
        LOGIN_COOKIE,
        cookie,
        max_age=SIGN_IN_SECONDS,
        path="/sign-in",
        httponly=True,
        samesite="lax",
        secure=callback.startswith("https:"),
    )
    return reply


@router.get(CALLBACK)
async def finish_provider_sign_in(http: Request, service: ServiceDependency) -> Response:
    """Checks the provider's answer, sets the session cookie and leads to the requested page.

    Providers send browsers back to this address after they have signed out, too, without an answer.
    """
    oidc, entry = _provider(service)
    if not http.query_params:
        return see_other("/sign-in")
    login, now = http.cookies.get(LOGIN_COOKIE, ""), service.store.now()
    try:
        identity, next_page = await oidc.finish(dict(http.query_params), login, now=now)
        _check_allowed(entry, identity)
    except ApiError as error:
        log.warning("a sign-in at the provider was refused: %s", error)
        reply: Response = _refused(http, service, "/", error)
    else:
        # Not a redirect: after one that another site began, browsers would not send the strict cookie.
        reply = Page("signed_in.html", next=same_site_page(next_page))
        is_https = (entry.public_url or "").startswith("https:") or http.url.scheme == "https"
        await _open_session(service, reply, PROVIDER, identity.model_dump_json(), is_https=is_https)
        log.info(
            "%s signed in",
            identity.email or identity.subject,
            extra={"email": identity.email, "subject": identity.subject},
        )
    reply.delete_cookie(LOGIN_COOKIE, path="/sign-in", httponly=True, samesite="lax")
    return reply


def _callback_address(entry: OidcEntry, http: Request) -> str:
    """Returns the address to which the provider sends browsers back."""
    return (entry.public_url or str(http.base_url).rstrip("/")) + CALLBACK


def _check_allowed(entry: OidcEntry, identity: Identity) -> None:
    if not entry.role_of(identity.email, identity.groups)[0]:
        groups = ", ".join(identity.groups) or "none"
        log.warning("groups of %s in the claim %r: %s", identity.email or identity.subject, entry.groups_claim, groups)
        who = "This account" if identity.email is None else f"The account {identity.email}"
        raise ApiError(f"{who} may not open these pages. Ask an administrator.", status=403, code="not_allowed")


def _provider(service: Service) -> tuple[OidcClient, OidcEntry]:
    entry = service.settings.oidc
    if service.oidc is None or entry is None:
        raise ApiError("No sign-in provider is set up.", status=404, code="no_provider")
    return service.oidc, entry


@router.post("/sign-in")
async def sign_in(http: Request, service: ServiceDependency, form: Form) -> Response:
    """Checks the administrator's key, sets the session cookie and redirects to the requested page."""
    next_page = same_site_page(form.get("next", "/"))
    try:
        add_log_fields(http, administrator=service.keys.check_admin(http, form.get("key", "")))
    except ApiError as error:
        return _refused(http, service, next_page, error)
    reply = see_other(next_page)
    is_https = http.headers.get("origin", "").startswith("https:")
    await _open_session(service, reply, hash_key(form.get("key", "")), is_https=is_https)
    return reply


async def _open_session(
    service: Service, reply: Response, admin_hash: str, identity: str | None = None, *, is_https: bool
) -> None:
    """Stores a session and sets its cookie."""
    token = secrets.token_urlsafe(32)
    await service.store.sign_ins.add(_token_digest(token, admin_hash), seconds=SESSION_SECONDS, identity=identity)
    reply.set_cookie(COOKIE, token, max_age=SESSION_SECONDS, httponly=True, samesite="strict", secure=is_https)


@router.post("/sign-out")
async def sign_out(http: Request, service: ServiceDependency, _: Form) -> Response:
    """Revokes the session, deletes its cookie, and leads to the provider to end the session there, too."""
    address = await _sign_out_address(http, service)
    await service.store.sign_ins.delete([*_session_digests(http, service), _provider_digest(http)])
    # Not a redirect to the provider: after a form, browsers would refuse it, by `form-action`.
    reply = see_other("/sign-in") if address is None else Page("signed_out.html", address=address)
    reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return reply


async def _sign_out_address(http: Request, service: Service) -> str | None:
    """Returns the address at the provider that ends the session there; `None` without such a session or address."""
    stored = await service.store.sign_ins.find_identity(_provider_digest(http))
    if stored is None or service.oidc is None or service.settings.oidc is None:
        return None
    try:
        return await service.oidc.sign_out_address(
            json.loads(stored).get("id_token"), _callback_address(service.settings.oidc, http)
        )
    except ApiError as error:
        log.warning("a session ended here, but not at the provider: %s", error)
        return None


def _session_digests(http: Request, service: Service) -> list[str]:
    """Returns the digests that the session's cookie may have, one for each administrator."""
    token = http.cookies.get(COOKIE, "")
    return [_token_digest(token, admin_hash) for admin_hash in service.keys.admin_hashes]


def _provider_digest(http: Request) -> str:
    """Returns the digest of the session's cookie if the visitor signed in at the provider."""
    return _token_digest(http.cookies.get(COOKIE, ""), PROVIDER)


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
