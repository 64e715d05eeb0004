"""API keys: authentication by hash, model access and rate limits. Their budgets are in `budgets`."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator, Mapping

from starlette.requests import HTTPConnection

from rl_conductor_server.auth.budgets import KeyBudget
from rl_conductor_server.auth.rate_limit import FailedAuthLimiter, TokenBucket
from rl_conductor_server.catalog import ServedModel
from rl_conductor_server.errors import ApiError
from rl_conductor_server.settings import KeyEntry, Settings
from rl_conductor_server.store import Store

LOCAL = "local"
"""The name of the key that all requests use when none is configured."""
PREFIX = "rlc_"


def generate_key() -> tuple[str, str]:
    """Generates a key and its SHA-256; it has 256 random bits, so a plain hash is safe to store."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hash_key(key)


def hash_key(key: str) -> str:
    """Returns the SHA-256 of a key, in hex."""
    return hashlib.sha256(key.encode()).hexdigest()


class ApiKey(KeyBudget):
    """An API key with its permissions, rate limit and budget."""

    def __init__(self, name: str, entry: KeyEntry | None, store: Store) -> None:
        super().__init__(name, entry, store)
        self._entry = entry
        self._bucket = TokenBucket(entry.requests_per_minute) if entry and entry.requests_per_minute else None

    def may_use(self, model: ServedModel) -> bool:
        """Returns `True` if this key has access to `model`."""
        models = self._entry.models if self._entry else None
        return models is None or bool(models & {model.name, model.pinned})

    def check_model(self, model: ServedModel) -> None:
        """Raises `ApiError` if this key has no access to `model`."""
        if not self.may_use(model):
            message = f"this key has no access to model {model.name!r}"
            raise ApiError(message, status=403, code="model_not_allowed", param="model")

    def check_rate(self) -> None:
        """Counts a request. Raises `ApiError` if it exceeds the rate limit."""
        if self._entry and self._bucket and (wait := self._bucket.take()):
            message = f"this key is limited to {self._entry.requests_per_minute} requests a minute"
            raise ApiError(message, status=429, code="rate_limit_exceeded", retry_after=wait)

    async def report(self) -> dict[str, object]:
        """Returns the settings and the spending of the key, for the administrator."""
        settings = self._entry.model_dump(mode="json", exclude={"sha256"}) if self._entry else {}
        return {"name": self.name, "spent_usd": f"{(await self.usage()).cost:f}", **settings}


class ApiKeys:
    """All configured API keys."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._by_hash = {entry.sha256: ApiKey(name, entry, store) for name, entry in settings.keys.items()}
        self._admin_hash = settings.admin_sha256
        self._local = ApiKey(LOCAL, None, store)
        self._failures = FailedAuthLimiter()

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(self._by_hash.values() if self._by_hash else (self._local,))

    def authenticate(self, http: HTTPConnection) -> ApiKey:
        """Returns the key of a request.

        A valid key is accepted however many failed attempts came from its address, which may be a proxy's.

        Raises:
            ApiError: the request has no valid key.
        """
        if not self._by_hash:
            return self._local
        presented = hash_key(_credentials(http.headers))
        matches = [key for sha256, key in self._by_hash.items() if hmac.compare_digest(sha256, presented)]
        if not matches:
            self._failures.record_failure(_host(http))
            raise ApiError("no such API key", status=401, code="invalid_api_key")
        return matches[0]

    def find(self, name: str) -> ApiKey:
        """Returns the key of this name.

        Raises:
            ApiError: there is no such key.
        """
        for key in self:
            if key.name == name:
                return key
        raise ApiError(f"there is no key {name!r} any more", status=409, code="no_such_key")

    def check_admin(self, http: HTTPConnection, key: str | None = None) -> None:
        """Raises `ApiError` unless the request, or the form in it, contains the administrator's `key`.

        After too many failed attempts even the correct key is rejected for a while, because an administrator may have
        chosen a weak one.
        """
        if self._admin_hash is None:
            message = "admin endpoints are disabled; set admin_sha256 in the settings to enable them"
            raise ApiError(message, status=404, code="no_admin")
        self._failures.check(_host(http))
        presented = _credentials(http.headers) if key is None else key
        if not hmac.compare_digest(self._admin_hash, hash_key(presented)):
            self._failures.record_failure(_host(http))
            raise ApiError("invalid administrator key", status=401, code="invalid_api_key")


def _host(http: HTTPConnection) -> str:
    return http.client.host if http.client else ""


def _credentials(headers: Mapping[str, str]) -> str:
    """Returns the key in `Authorization: Bearer KEY`, as OpenAI's SDK sends it, or `X-Api-Key`, as Anthropic's does."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
