"""Who asks, and how much they still may: API keys by their hash, rates, and budgets that hold for each single call."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

from rl_conductor.ledger import Amount, Ledger
from rl_conductor.limits import Limits
from rl_conductor.server.errors import ApiError
from rl_conductor.server.profiles import Served
from rl_conductor.server.settings import KeyEntry, Settings
from rl_conductor.store import Store

LOCAL = "local"
"""The account of everybody, where no key is set."""
PREFIX = "rlc_"
ANY_DEPTH = 1_000
"""A budget stands around a run, but is no conductor that calls another."""


def new_key() -> tuple[str, str]:
    """A key and its SHA-256. It is random enough that nobody can guess it from a plain hash."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hashed(key)


def hashed(key: str) -> str:
    """SHA-256 of a key, in hex."""
    return hashlib.sha256(key.encode()).hexdigest()


class Account:
    """A key, its rate and its budget."""

    def __init__(self, name: str, entry: KeyEntry | None, store: Store) -> None:
        self.name = name
        self._entry = entry
        self._store = store
        self._turns = float(entry.requests_per_minute or 0) if entry else 0.0
        self._counted = time.monotonic()
        self._since: float | None = None
        self._elsewhere = Decimal(0)
        self._budget: Ledger | None = None
        self._counting = asyncio.Lock()

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
        rate = self._entry.requests_per_minute if self._entry else None
        if rate is None:
            return
        now = time.monotonic()
        self._turns = min(float(rate), self._turns + (now - self._counted) * rate / 60)
        self._counted = now
        if self._turns < 1:
            wait = (1 - self._turns) * 60 / rate
            message = f"this key may ask {rate} times a minute"
            raise ApiError(message, status=429, code="rate_limit_exceeded", retry_after=wait)
        self._turns -= 1

    async def budget(self) -> Ledger | None:
        """What this key may still spend in the period at hand; `None` when it may spend anything.

        Raises:
            ApiError: nothing is left.
        """
        if self._entry is None or self._entry.usd is None:
            return None
        since = period_start(self._entry.per)
        async with self._counting:  # who comes meanwhile must see what was spent before, too
            if self._budget is None or since != self._since:
                elsewhere = await self._store.spent(self.name, since=since, elsewhere=True)
                self._budget = Ledger(Limits(usd=self._entry.usd, depth=ANY_DEPTH))
                self._budget.spent += Amount(usd=elsewhere)
                self._since, self._elsewhere = since, elsewhere
        if self._budget.spent.usd >= self._entry.usd:
            message = f"this key's budget of ${self._entry.usd:f} ({self._entry.per}) is used up"
            raise ApiError(message, status=429, code="insufficient_quota")
        return self._budget

    async def refresh(self) -> None:
        """Count what other processes have spent on this key meanwhile."""
        async with self._counting:
            if self._budget is None or self._since is None:
                return
            elsewhere = await self._store.spent(self.name, since=self._since, elsewhere=True)
            self._budget.spent += Amount(usd=elsewhere - self._elsewhere)
            self._elsewhere = elsewhere

    async def standing(self) -> dict[str, object]:
        """What an administrator is told of it."""
        entry = self._entry
        since = period_start(entry.per if entry else "month")
        spent = await self._store.spent(self.name, since=since)
        told = entry.model_dump(mode="json", exclude={"sha256"}) if entry else {}
        return {"name": self.name, "spent_usd": f"{spent:f}", **told}


class Keys:
    """All accounts, found by the key that a request brings."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._by_hash = {entry.sha256: Account(name, entry, store) for name, entry in settings.keys.items()}
        self._admin = settings.admin_sha256
        self._local = Account(LOCAL, None, store)

    @property
    def accounts(self) -> list[Account]:
        """Every account."""
        return list(self._by_hash.values()) or [self._local]

    def account(self, headers: Mapping[str, str]) -> Account:
        """Whose request this is.

        Raises:
            ApiError: nobody's.
        """
        if not self._by_hash:
            return self._local
        brought = hashed(_brought(headers))
        found = [account for known, account in self._by_hash.items() if hmac.compare_digest(known, brought)]
        if not found:
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

    def check_admin(self, headers: Mapping[str, str]) -> None:
        """Raise `ApiError` unless the request brings the administrator's key."""
        if self._admin is None:
            raise ApiError("set admin_sha256 in the settings to use this", status=404, code="no_admin")
        if not hmac.compare_digest(self._admin, hashed(_brought(headers))):
            raise ApiError("not the administrator's key", status=401, code="invalid_api_key")


def _brought(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def period_start(per: str) -> float:
    """When the period at hand began, in seconds since 1970."""
    now = datetime.now(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return {"day": today.timestamp(), "month": today.replace(day=1).timestamp(), "ever": 0.0}[per]
