"""Who asks, and how often they may: API keys by their hash, and rates. What they may spend is in `purses`."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping

from starlette.requests import HTTPConnection

from rl_conductor_server.auth.budgets import Purse
from rl_conductor_server.auth.rate_limit import Guesses, Rate
from rl_conductor_server.catalog import Served
from rl_conductor_server.errors import ApiError
from rl_conductor_server.settings import KeyEntry, Settings
from rl_conductor_server.store import Store

LOCAL = "local"
"""The account of everybody, where no key is set."""
PREFIX = "rlc_"


def new_key() -> tuple[str, str]:
    """A key and its SHA-256. It is random enough that nobody can guess it from a plain hash."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hashed(key)


def hashed(key: str) -> str:
    """SHA-256 of a key, in hex."""
    return hashlib.sha256(key.encode()).hexdigest()


class Account(Purse):
    """A key, its rate and its budget."""

    def __init__(self, name: str, entry: KeyEntry | None, store: Store) -> None:
        super().__init__(name, entry, store)
        self._entry = entry
        self._rate = Rate(entry.requests_per_minute) if entry and entry.requests_per_minute else None

    def may_ask(self, served: Served) -> bool:
        """Whether this key may ask that model."""
        models = self._entry.models if self._entry else None
        return models is None or bool(models & {served.name, served.pinned})

    def check_model(self, served: Served) -> None:
        """Raise `ApiError` when this key may not ask that model."""
        if not self.may_ask(served):
            message = f"this key may not ask {served.name!r}"
            raise ApiError(message, status=403, code="model_not_allowed", param="model")

    def take_turn(self) -> None:
        """Count a request. Raises `ApiError` when there were too many within a minute."""
        if self._entry and self._rate and (wait := self._rate.take()):
            message = f"this key may ask {self._entry.requests_per_minute} times a minute"
            raise ApiError(message, status=429, code="rate_limit_exceeded", retry_after=wait)

    async def standing(self) -> dict[str, object]:
        """What an administrator is told of it."""
        told = self._entry.model_dump(mode="json", exclude={"sha256"}) if self._entry else {}
        return {"name": self.name, "spent_usd": f"{(await self.spent()).cost:f}", **told}


class Keys:
    """All accounts, found by the key that a request brings."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._by_hash = {entry.sha256: Account(name, entry, store) for name, entry in settings.keys.items()}
        self._admin = settings.admin_sha256
        self._local = Account(LOCAL, None, store)
        self._guesses = Guesses()

    @property
    def accounts(self) -> list[Account]:
        """Every account."""
        return list(self._by_hash.values()) or [self._local]

    def account(self, http: HTTPConnection) -> Account:
        """Whose request this is.

        A right key is heard however many wrong ones come from its address, which may be a proxy's.

        Raises:
            ApiError: nobody's.
        """
        if not self._by_hash:
            return self._local
        brought = hashed(_brought(http.headers))
        found = [account for known, account in self._by_hash.items() if hmac.compare_digest(known, brought)]
        if not found:
            self._guesses.wrong(_host(http))
            raise ApiError("no such API key", status=401, code="invalid_api_key")
        return found[0]

    def named(self, name: str) -> Account:
        """The account of this name.

        Raises:
            ApiError: there is none any more.
        """
        for account in self.accounts:
            if account.name == name:
                return account
        raise ApiError(f"there is no key {name!r} any more", status=409, code="no_such_key")

    def check_admin(self, http: HTTPConnection, key: str | None = None) -> None:
        """Raise `ApiError` unless the request, or the form in it, brings the administrator's `key`.

        After too many wrong ones not even the right one is heard for a while: somebody may have chosen it themselves.
        """
        if self._admin is None:
            raise ApiError("set admin_sha256 in the settings to use this", status=404, code="no_admin")
        self._guesses.check(_host(http))
        brought = _brought(http.headers) if key is None else key
        if not hmac.compare_digest(self._admin, hashed(brought)):
            self._guesses.wrong(_host(http))
            raise ApiError("not the administrator's key", status=401, code="invalid_api_key")


def _host(http: HTTPConnection) -> str:
    return http.client.host if http.client else ""


def _brought(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
