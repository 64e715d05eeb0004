"""API keys and administrators: authentication by hash, model access and rate limits. Their budgets are in `budgets`."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Container, Iterator, Mapping

from pydantic import ValidationError
from starlette.requests import HTTPConnection

from rl_conductor._internal.validation import first_field_error
from rl_conductor.errors import ConfigError
from rl_conductor_server.auth.budgets import KeyBudget
from rl_conductor_server.auth.created_keys import KeyTerms, create_key
from rl_conductor_server.auth.key_secrets import GENERATED, hash_key
from rl_conductor_server.auth.rate_limit import FailedAuthLimiter, TokenBucket
from rl_conductor_server.catalog import ModelCatalog, ServedModel
from rl_conductor_server.errors import ApiError
from rl_conductor_server.settings import KeyEntry, Settings
from rl_conductor_server.store import KeySpending, Store, StoredKey

log = logging.getLogger("rl_conductor_server")

LOCAL = "local"
"""The name of the key that all requests use when there is none."""
ADMINISTRATOR = "@administrator"
"""Stands for all administrators where a key is named, as the author of feedback; no API key can have this name."""
REFRESH_SECONDS = 2.0
"""Interval at which each process reads the keys of the store, so a revoked key is rejected that much later."""


def check_names(settings: Settings) -> None:
    """Raises `ConfigError` if a key or an administrator of the settings has the name of the built-in key."""
    for table, names in (("keys", settings.keys), ("admins", settings.admins)):
        if LOCAL in names:
            raise ConfigError(f"{table}.{LOCAL}: this name is reserved; choose another, such as {LOCAL}-1")


def configured_names(settings: Settings) -> frozenset[str]:
    """Returns the names of all keys and administrators of the settings, and of the built-in key."""
    return frozenset({LOCAL, *settings.keys, *settings.admins})


def check_new_name(name: str, configured: Container[str]) -> None:
    """Raises `ConfigError` if a new key would have one of the `configured_names`."""
    if name in configured:
        raise ConfigError(f"{name!r} is a name of the settings, or reserved; choose another")


class ApiKey(KeyBudget):
    """An API key with its permissions, rate limit and budget."""

    def __init__(self, name: str, entry: KeyEntry | None, store: Store) -> None:
        super().__init__(name, entry, store)
        self.entry = entry
        """Its settings; `None` for the key of requests without one."""
        self._bucket = TokenBucket(entry.requests_per_minute) if entry and entry.requests_per_minute else None

    @property
    def cache_seconds(self) -> int | None:
        """Maximum age of a cached answer; `None` if the key does not use the response cache."""
        return self.entry.cache_seconds if self.entry else None

    @property
    def may_read_metrics(self) -> bool:
        """`True` if this key may read the metrics of all keys, or is the only one."""
        return self.entry is None or self.entry.metrics

    def may_use(self, model: ServedModel) -> bool:
        """Returns `True` if this key has access to `model`."""
        return model.is_among(self.entry.models if self.entry else None)

    def find_model(self, catalog: ModelCatalog, name: str) -> ServedModel:
        """Returns the model of this name. Raises `ApiError` if there is none, or this key has no access to it."""
        model = catalog.find(name, is_listed=self.may_use)
        if not self.may_use(model):
            message = f"this key has no access to model {model.name!r}"
            raise ApiError(message, status=403, code="model_not_allowed", param="model")
        return model

    def check_rate(self) -> None:
        """Counts a request. Raises `ApiError` if it exceeds the rate limit."""
        if self.entry and self._bucket and (wait := self._bucket.take()):
            message = f"this key is limited to {self.entry.requests_per_minute} requests a minute"
            raise ApiError(message, status=429, code="rate_limit_exceeded", retry_after=wait)

    @property
    def is_rate_limited(self) -> bool:
        """`True` if the next request would exceed the rate limit."""
        return self._bucket is not None and self._bucket.wait > 0

    async def wait_for_rate(self) -> None:
        """Counts a request as soon as the rate limit allows it, for requests that no client waits for."""
        while self._bucket and (wait := self._bucket.take()):  # noqa: ASYNC110
            await asyncio.sleep(wait)

    def report(self, spending: KeySpending) -> dict[str, object]:
        """Returns the settings, the spending and the charges to the budget, for the administrator."""
        settings = self.entry.model_dump(mode="json", exclude={"sha256"}) if self.entry else {}
        return {
            "name": self.name,
            "spent_usd": f"{spending.usage.cost:f}",
            "charged_usd": f"{spending.charged.usd:f}",
            "charged_tokens": spending.charged.tokens,
            "stored_bytes": self.stored_bytes,
            **settings,
        }


class ApiKeys:
    """All API keys and administrators: those of the settings, and those in the store; see `refresh`."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._store = store
        self._storage_limit = settings.store.key_bytes
        self._configured = {entry.sha256: ApiKey(name, entry, store) for name, entry in settings.keys.items()}
        self._configured_admins = {entry.sha256: name for name, entry in settings.admins.items()}
        self._configured_names = configured_names(settings)
        self._stored: dict[str, StoredKey] = {}
        self._stored_keys: dict[str, ApiKey] = {}
        """The keys of `_stored` by name, so that each keeps its budget and rate limit."""
        self._local = ApiKey(LOCAL, None, store)
        self._failures = FailedAuthLimiter()

    def __iter__(self) -> Iterator[ApiKey]:
        return iter((*self._configured.values(), *self._stored_keys.values()) if self.is_required else (self._local,))

    @property
    def is_required(self) -> bool:
        """`True` if requests need a key, also after the last one was revoked."""
        return bool(self._configured) or any(not key.admin for key in self._stored.values())

    @property
    def are_several(self) -> bool:
        """`True` if there is more than one key."""
        return len(self._configured) + len(self._stored_keys) > 1

    @property
    def admin_hashes(self) -> list[str]:
        """The SHA-256 of the key of each administrator."""
        now = self._store.now()
        stored = [sha256 for sha256, key in self._stored.items() if key.admin and key.is_valid(now)]
        return [*self._configured_admins, *stored]

    @property
    def admin_names(self) -> list[str]:
        """The names of all administrators."""
        return sorted({self._admin_name(sha256) for sha256 in self.admin_hashes})

    def _admin_name(self, sha256: str) -> str:
        return self._configured_admins.get(sha256) or self._stored[sha256].name

    async def create(self, name: str, terms: KeyTerms) -> str:
        """Stores a new key and returns its secret, which can't be read again.

        Raises:
            ConfigError: the name is taken.
        """
        check_new_name(name, self._configured_names)
        secret = await create_key(self._store, name, terms)
        await self.refresh()
        return secret

    async def refresh(self) -> None:
        """Reads the keys of the store; called every `REFRESH_SECONDS`. Keys of the settings come first."""
        rows = [row for row in await self._store.keys.list_all() if row.name not in self._configured_names]
        now = self._store.now()
        newest = {row.name: row for row in reversed(rows) if not row.admin and row.is_valid(now)}
        keys = {name: self._key_of(row) for name, row in newest.items()}
        self._stored = {row.sha256: row for row in rows}
        self._stored_keys = {name: key for name, key in keys.items() if key is not None}
        sizes = await self._store.sizes.totals()
        for key in self:
            key.update_storage(sizes.get(key.name, 0), limit=self._storage_limit)

    def _key_of(self, row: StoredKey) -> ApiKey | None:
        """Returns the key of a row; `None` if a newer release gave it limits that this one can't enforce."""
        key = self._stored_keys.get(row.name)
        if key is not None:  # its limits never change
            return key
        try:
            entry = KeyEntry.model_validate({**json.loads(row.entry), "sha256": row.sha256})
        except ValidationError as error:
            log.error(  # noqa: TRY400
                "the key %r is rejected, as its settings are of another release: %s", row.name, first_field_error(error)
            )
            return None
        return ApiKey(row.name, entry, self._store)

    def authenticate(self, http: HTTPConnection) -> ApiKey:
        """Returns the key of a request.

        A valid key is accepted however many failed attempts came from its address, which may be a proxy's.

        Raises:
            ApiError: the request has no valid key.
        """
        if not self.is_required:
            return self._local
        presented = hash_key(_credentials(http.headers))
        key = self._configured.get(presented)
        row = self._stored.get(presented)
        if row is not None and not row.admin and row.is_valid(self._store.now()):
            key = self._stored_keys.get(row.name)
        if key is not None:
            return key
        self._failures.record_failure(_host(http))
        raise ApiError(self._refusal(http.headers, row), status=401, code="invalid_api_key")

    def _refusal(self, headers: Mapping[str, str], row: StoredKey | None) -> str:
        """Explains why a key is refused, and how it ended if it was valid once."""
        secret = _credentials(headers)
        if not secret:
            return _no_credentials(headers, "API key")
        if hash_key(secret) in self.admin_hashes:
            return "this is an administrator's key, for /admin and the pages; send an API key"
        if row is None:
            return "no such API key"
        return f"this API key {_ended(row)}"

    def check_metrics(self, http: HTTPConnection) -> None:
        """Checks that a request may read the metrics: with a key that is allowed to, or an administrator's.

        Raises:
            ApiError: it may not.
        """
        if hash_key(_credentials(http.headers)) in self.admin_hashes:
            self.check_admin(http)
        elif not self.authenticate(http).may_read_metrics:
            message = (
                "this key may not read /metrics; use an administrator's, or create one that may: rl-conductor keys "
                "create prometheus --metrics --tokens 0"
            )
            raise ApiError(message, status=403, code="metrics_not_allowed")

    async def load(self, name: str) -> ApiKey:
        """Returns the key of this name, also one that another process has created since the last `refresh`.

        Raises:
            ApiError: there is no such key.
            StoreUnavailableError: the database does not answer.
        """
        names = {*(key.name for key in self), *(row.name for row in self._stored.values())}
        if name not in names:
            await self.refresh()
        return self.find(name)

    def find(self, name: str) -> ApiKey:
        """Returns the key of this name.

        Raises:
            ApiError: there is no such key.
        """
        for key in self:
            if key.name == name:
                return key
        raise ApiError(f"there is no key {name!r} any more", status=409, code="no_such_key")

    def check_admin(self, http: HTTPConnection, key: str | None = None) -> str:
        """Returns the administrator's name if the request, or the form in it, contains the `key` of one.

        After too many failed attempts from an address, which may be a proxy's, even a correct key is rejected for a
        while, because an administrator may have chosen a weak one; a generated one can't be guessed.

        Raises:
            ApiError: it contains no administrator's key, or there is no administrator.
        """
        if not self.admin_hashes:
            message = "admin endpoints are disabled; create an administrator: rl-conductor keys create NAME --admin"
            raise ApiError(message, status=404, code="no_admin")
        secret = _credentials(http.headers) if key is None else key
        presented = hash_key(secret)
        matching = [sha256 for sha256 in self.admin_hashes if hmac.compare_digest(sha256, presented)]
        if not (matching and GENERATED.fullmatch(secret)):
            self._failures.check(_host(http))
        if matching:
            return self._admin_name(matching[0])
        self._failures.record_failure(_host(http))
        is_missing = not secret and key is None
        message = _no_credentials(http.headers, "administrator's key") if is_missing else self._admin_refusal(presented)
        raise ApiError(message, status=401, code="invalid_api_key")

    def _admin_refusal(self, sha256: str) -> str:
        """Says why a key is refused as an administrator's."""
        row = self._stored.get(sha256)
        if sha256 in self._configured or (row is not None and not row.admin):
            return "this is an API key, for requests; send an administrator's key"
        return "invalid administrator key" if row is None else f"this administrator's key {_ended(row)}"


def _host(http: HTTPConnection) -> str:
    return http.client.host if http.client else ""


def _credentials(headers: Mapping[str, str]) -> str:
    """Returns the key in `Authorization: Bearer KEY`, as OpenAI's SDK sends it, or `X-Api-Key`, as Anthropic's does."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _no_credentials(headers: Mapping[str, str], kind: str) -> str:
    """Says that a request has no key, and how to send one."""
    how = "'Authorization: Bearer KEY', or in the header x-api-key"
    scheme = headers.get("authorization", "").partition(" ")[0]
    if scheme and scheme.lower() != "bearer":
        return f"the header Authorization does not begin with 'Bearer', so no {kind} was found; send it as {how}"
    return f"no {kind} was sent; send one as {how}"


def _ended(row: StoredKey) -> str:
    return "was revoked" if row.revoked is not None else "has expired"
