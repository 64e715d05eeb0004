"""A real OpenID Connect provider on the loopback interface, which checks what clients send, and can misbehave."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus, urlencode

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from uvicorn import Config, Server

from server.conftest import listening

CLIENT_ID, CLIENT_SECRET = "conductor", "the-client-secret"
KEY = RSAKey.generate_key(2048, {"kid": "one"})
OTHER_KEY = RSAKey.generate_key(2048, {"kid": "one"})
NEXT_KEY = RSAKey.generate_key(2048, {"kid": "two"})
UNSIGNED = "none"
"""The algorithm of a token without a signature."""


@dataclass
class Provider:
    """The provider's claims about the user, who is signed in there already."""

    issuer: str = ""
    claims: dict[str, Any] = field(default_factory=lambda: {"email": "ann@example.com", "email_verified": True})
    info: dict[str, Any] | None = None
    """The reply of the user info endpoint, if there is one."""
    changed: dict[str, Any] = field(default_factory=dict)
    """Claims of the ID token that are wrong."""
    key: RSAKey = field(default_factory=lambda: KEY)
    """Signs the ID token."""
    published_keys: list[RSAKey] = field(default_factory=lambda: [KEY])
    algorithm: str = "RS256"
    error: str | None = None
    """Refuses to sign the user in."""
    secret: str = CLIENT_SECRET
    auth_method: str | None = None
    """How the client sends its secret; `None` is the standard's default, which the metadata does not name."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    is_down: bool = False
    can_sign_out: bool = False
    signed_out: list[dict[str, str]] = field(default_factory=list)
    """The requests to end a session."""

    def app(self) -> Starlette:
        routes = [
            Route("/.well-known/openid-configuration", self.metadata),
            Route("/authorize", self.authorize),
            Route("/token", self.token, methods=["POST"]),
            Route("/keys", self.keys),
            Route("/userinfo", self.userinfo),
            Route("/logout", self.log_out),
        ]
        return Starlette(routes=routes)

    async def metadata(self, _: Request) -> Response:
        if self.is_down:
            return Response(status_code=503)
        addresses = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        if self.info is not None:
            addresses["userinfo_endpoint"] = "userinfo"
        if self.can_sign_out:
            addresses["end_session_endpoint"] = "logout?realm=main"
        found: dict[str, Any] = {name: f"{self.issuer}/{path}" for name, path in addresses.items()}
        if self.auth_method is not None:
            found["token_endpoint_auth_methods_supported"] = [self.auth_method]
        return JSONResponse({"issuer": self.issuer, **found})

    async def authorize(self, http: Request) -> Response:
        sent = dict(http.query_params)
        assert sent["client_id"] == CLIENT_ID
        assert (sent["response_type"], sent["code_challenge_method"]) == ("code", "S256")
        assert "openid" in sent["scope"].split()
        answer = {"state": sent["state"]}
        if self.error is not None:
            answer |= {"error": self.error, "error_description": "Ann is not assigned to this application"}
        else:
            answer["code"] = secrets.token_urlsafe()
            self.codes[answer["code"]] = sent
        return RedirectResponse(f"{sent['redirect_uri']}?{urlencode(answer)}", status_code=302)

    async def token(self, http: Request) -> Response:
        async with http.form() as form:
            fields = {name: str(value) for name, value in form.items()}
        if self._client_of(http, fields) != [CLIENT_ID, self.secret]:
            refusal = {"error": "invalid_client", "error_description": "wrong client secret"}
            return JSONResponse(refusal, status_code=401)
        sent = self.codes.pop(fields["code"], None)  # a code is used once
        digest = hashlib.sha256(fields.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if sent is None or sent["code_challenge"] != challenge or sent["redirect_uri"] != fields["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        return JSONResponse({"access_token": "at", "token_type": "Bearer", "id_token": self._id_token(sent["nonce"])})

    def _client_of(self, http: Request, fields: dict[str, str]) -> list[str]:
        if self.auth_method == "client_secret_post":
            return [fields.get("client_id", ""), fields.get("client_secret", "")]
        encoded = http.headers.get("authorization", "").removeprefix("Basic ")
        return [unquote_plus(part) for part in base64.b64decode(encoded).decode().split(":")]

    def _id_token(self, nonce: str) -> str:
        now = int(time.time())
        base = {"iss": self.issuer, "aud": CLIENT_ID, "sub": "user-1", "nonce": nonce, "iat": now, "exp": now + 300}
        claims = {name: value for name, value in (base | self.claims | self.changed).items() if value is not None}
        if self.algorithm == UNSIGNED:
            return f"{_encode({'alg': UNSIGNED})}.{_encode(claims)}."
        header, key = {"alg": self.algorithm, "kid": self.key.kid}, self.key
        if self.algorithm == "HS256":
            return jwt.encode(header, claims, OctKey.import_key(self.secret))
        return jwt.encode(header, claims, key, algorithms=[self.algorithm])

    async def keys(self, _: Request) -> Response:
        return JSONResponse({"keys": [key.as_dict(private=False) for key in self.published_keys]})

    async def log_out(self, http: Request) -> Response:
        sent = dict(http.query_params)
        self.signed_out.append(sent)
        return RedirectResponse(sent["post_logout_redirect_uri"], status_code=302)

    async def userinfo(self, http: Request) -> Response:
        assert http.headers["authorization"] == "Bearer at"
        return JSONResponse(self.info)


def _encode(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


@asynccontextmanager
async def provider_running(host: str = "127.0.0.1") -> AsyncGenerator[Provider, None]:
    """Runs a provider while the block does."""
    provider = Provider()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        provider.issuer = f"http://{host}:{listener.getsockname()[1]}"
        server = Server(Config(provider.app(), log_level="error", lifespan="off"))
        async with listening(server, listener):
            yield provider
