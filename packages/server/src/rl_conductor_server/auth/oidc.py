"""Sign-in with OpenID Connect: the authorization code flow with PKCE, by Authlib and joserfc.

Between the redirect to the provider and its answer, what the answer must match is in a cookie of the browser, signed
with a key that every replica derives from the client secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_plus

from pydantic import ValidationError

from rl_conductor.errors import ConfigError
from rl_conductor.types import Value
from rl_conductor_server.errors import ApiError
from rl_conductor_server.settings import OidcEntry
from rl_conductor_server.settings.sign_in import SIGN_IN_SECONDS

try:
    import httpx2
    from authlib.common.errors import AuthlibBaseError
    from authlib.integrations.httpx_client import AsyncOAuth2Client
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet, OctKey

    from rl_conductor_server.auth.id_token import RefusedTokenError, check_claims, find_claim, read_signed_token
except ImportError as missing:
    raise ConfigError("sign-in with OpenID Connect needs: pip install 'rl-conductor-server[oidc]'") from missing

BASIC = "client_secret_basic"
METADATA_SECONDS = 3600
TIMEOUT_SECONDS = 10.0
REASON_CHARS = 300
"""Maximum length of what the provider says about a refusal, as the sign-in page and the log show it."""
MAX_HINT_CHARS = 4_000
"""Maximum length of an ID token in the address to sign out: servers refuse long ones, often from 8,000 characters."""


class Identity(Value):
    """A signed-in person, as described by the provider."""

    subject: str
    email: str | None = None
    """Only if the provider verified it."""
    groups: tuple[str, ...] = ()
    id_token: str | None = None
    """The token itself, if the provider can end a session: it then knows which one."""


class Login(Value):
    """A sign-in in progress, as the browser's cookie has it."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    next: str
    """The page that was requested."""


class OidcClient:
    """The client of one provider."""

    def __init__(self, entry: OidcEntry) -> None:
        """Raises `ConfigError` if the environment variable of the client secret is not set."""
        secret = os.environ.get(entry.client_secret_env)
        if not secret:
            raise ConfigError(f"set {entry.client_secret_env} to the client secret of [oidc], or name another variable")
        self._entry = entry
        self._secret = secret
        self._cookie_key = OctKey.import_key(hashlib.sha256(f"rl-conductor sign-in {secret}".encode()).digest())
        self._metadata: dict[str, Any] = {}
        self._keys: KeySet | None = None
        self._fetched = 0.0

    async def begin(self, redirect_uri: str, next_page: str, *, now: float) -> tuple[str, str]:
        """Returns the address at the provider, and the value of the cookie for `finish`; `now` is the store's time."""
        await self._load_metadata()
        login = Login(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            redirect_uri=redirect_uri,
            next=next_page,
        )
        async with self._client(redirect_uri) as client:
            address, _ = client.create_authorization_url(
                self._metadata["authorization_endpoint"],
                state=login.state,
                nonce=login.nonce,
                code_verifier=login.verifier,
            )
        claims = login.model_dump() | {"exp": int(now) + SIGN_IN_SECONDS}
        return str(address), jwt.encode({"alg": "HS256"}, claims, self._cookie_key)

    async def finish(self, answer: dict[str, str], cookie: str, *, now: float) -> tuple[Identity, str]:
        """Checks the provider's answer; returns the person, and the page that was requested.

        Raises:
            ApiError: the answer does not belong to a sign-in of this browser, or the provider refused it.
        """
        login = self._read_cookie(cookie, now)
        if not hmac.compare_digest(login.state.encode(), answer.get("state", "").encode()):
            raise _rejected("the answer belongs to another sign-in")
        if answer.get("iss", self._entry.issuer) != self._entry.issuer:
            raise _rejected("the answer is from another provider")
        if "error" in answer or "code" not in answer:
            reason = ": ".join(answer[name] for name in ("error", "error_description") if name in answer)
            raise _rejected(f"the provider refused it ({reason[:REASON_CHARS] or 'without a reason'})")
        await self._load_metadata()
        try:
            async with self._client(login.redirect_uri) as client:
                token = await client.fetch_token(
                    self._metadata["token_endpoint"], code=answer["code"], code_verifier=login.verifier
                )
                id_token = str(token["id_token"])
                claims = await self._check_token(id_token, login.nonce, now)
                info = await self._read_userinfo(client, claims)
        except RefusedTokenError as error:
            raise _rejected(f"the provider's token {error}", advice="Try again, or ask an administrator.") from error
        except (AuthlibBaseError, JoseError, httpx2.HTTPError, KeyError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"[:REASON_CHARS]
            raise _rejected(f"the provider's answer is invalid ({reason})") from error
        return self._identity(id_token, claims, info), login.next

    async def sign_out_address(self, id_token: str | None, return_to: str) -> str | None:
        """Returns the address at which a browser ends its session at the provider; `None` if the provider has none.

        Raises:
            ApiError: the provider does not answer.
        """
        await self._load_metadata()
        endpoint = self._end_session_endpoint
        if endpoint is None:
            return None
        fields = {"client_id": self._entry.client_id, "post_logout_redirect_uri": return_to}
        if id_token is not None and len(id_token) <= MAX_HINT_CHARS:
            fields["id_token_hint"] = id_token
        return str(httpx2.URL(endpoint).copy_merge_params(fields))

    def _read_cookie(self, cookie: str, now: float) -> Login:
        try:
            token = jwt.decode(cookie, self._cookie_key, algorithms=["HS256"])
            jwt.JWTClaimsRegistry(now=int(now), exp={"essential": True}).validate(token.claims)
            return Login.model_validate({name: token.claims[name] for name in Login.model_fields})
        except (JoseError, KeyError, ValueError, ValidationError):
            raise _rejected("it took too long, or this browser did not begin it") from None

    async def _check_token(self, id_token: str, nonce: str, now: float) -> dict[str, Any]:
        """Returns the claims of an ID token whose signature and claims are right; raises `RefusedTokenError`."""
        try:
            token = read_signed_token(id_token, await self._load_keys())
        except RefusedTokenError:  # the provider may have new keys
            token = read_signed_token(id_token, await self._load_keys(renew=True))
        entry = self._entry
        check_claims(token.claims, issuer=entry.issuer, client_id=entry.client_id, nonce=nonce, now=now)
        return dict(token.claims)

    async def _read_userinfo(self, client: Any, claims: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the user info if the ID token lacks something that it may have."""
        is_complete = {"email", "email_verified"} <= claims.keys()
        if is_complete and find_claim(claims, self._entry.groups_claim) is not None:
            return {}
        if "userinfo_endpoint" not in self._metadata:
            return {}
        reply = await client.get(self._metadata["userinfo_endpoint"])
        reply.raise_for_status()
        info = dict(reply.json())
        if info.get("sub") != claims["sub"]:
            raise ValueError("the user info is about another user")
        return info

    def _identity(self, id_token: str, claims: Mapping[str, Any], info: Mapping[str, Any]) -> Identity:
        groups = find_claim(claims, self._entry.groups_claim)
        if groups is None:
            groups = find_claim(info, self._entry.groups_claim)
        return Identity(
            subject=str(claims["sub"]),
            email=_verified_email(claims, info),
            groups=tuple(str(group) for group in groups) if isinstance(groups, list) else (),
            id_token=None if self._end_session_endpoint is None else id_token,
        )

    # --------------------------------------------------------------------------------------- provider

    def _client(self, redirect_uri: str) -> Any:
        methods = self._metadata.get("token_endpoint_auth_methods_supported", [BASIC])
        return AsyncOAuth2Client(
            self._entry.client_id,
            self._secret,
            token_endpoint_auth_method=_encode_basic if BASIC in methods else "client_secret_post",
            redirect_uri=redirect_uri,
            scope=" ".join(self._entry.scopes),
            code_challenge_method="S256",
            timeout=TIMEOUT_SECONDS,
        )

    @property
    def _end_session_endpoint(self) -> str | None:
        """The address to sign out at; browsers are led there, so it must be a web address."""
        endpoint = self._metadata.get("end_session_endpoint")
        return endpoint if isinstance(endpoint, str) and endpoint.startswith(("https://", "http://")) else None

    async def _load_metadata(self) -> None:
        if self._metadata and time.monotonic() - self._fetched < METADATA_SECONDS:
            return
        metadata = await self._fetch(f"{self._entry.issuer.rstrip('/')}/.well-known/openid-configuration")
        needed = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        if metadata.get("issuer") != self._entry.issuer or not all(name in metadata for name in needed):
            raise _unavailable("its metadata does not match oidc.issuer")
        self._metadata, self._keys, self._fetched = metadata, None, time.monotonic()

    async def _load_keys(self, *, renew: bool = False) -> KeySet:
        if self._keys is None or renew:
            self._keys = KeySet.import_key_set(await self._fetch(self._metadata["jwks_uri"]))  # type: ignore[arg-type]
        return self._keys

    async def _fetch(self, address: str) -> dict[str, Any]:
        try:
            async with httpx2.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
                reply = await client.get(address)
                reply.raise_for_status()
                body = reply.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise _unavailable(type(error).__name__) from error
        if not isinstance(body, dict):
            raise _unavailable("its metadata is no JSON object")
        return body


def _verified_email(claims: Mapping[str, Any], info: Mapping[str, Any]) -> str | None:
    """Returns the email if the provider verified it: the ID token counts before the user info, if that has the same."""
    sources = [source for source in (claims, info) if source.get("email") is not None]
    email = str(sources[0]["email"]) if sources else None
    answers = [source.get("email_verified") for source in sources if str(source["email"]) == email]
    is_verified = next((answer for answer in answers if answer is not None), None) in (True, "true")
    return email.lower() if email is not None and is_verified else None


def _encode_basic(
    client: Any, _method: str, address: str, headers: dict[str, str], body: str
) -> tuple[str, dict[str, str], str]:
    """Adds the client's id and secret as a header, each encoded as RFC 6749, section 2.3.1 asks; Authlib does not."""
    text = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
    headers["Authorization"] = f"Basic {base64.b64encode(text.encode()).decode()}"
    return address, headers, body


def _rejected(reason: str, *, advice: str = "Try again.") -> ApiError:
    return ApiError(f"The sign-in failed: {reason}. {advice}", status=401, code="sign_in_failed")


def _unavailable(reason: str) -> ApiError:
    message = f"The sign-in provider does not answer as expected ({reason})."
    return ApiError(message, status=502, code="sign_in_unavailable", retry_after=5)
