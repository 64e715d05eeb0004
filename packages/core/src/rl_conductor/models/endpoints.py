"""Endpoints of providers: their addresses, the environment variables for their keys, and URLs made safe to print.

A key from the environment is sent only to the official endpoint or to the address that the environment names for it; a
key that the caller passes is sent to the caller's `base_url`. No adapter follows redirects, which could leak the key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from rl_conductor.errors import AuthenticationError, ConfigError
from rl_conductor.models.prices import price_of
from rl_conductor.types import FREE, Price

_USER_INFO = re.compile(r"^(\w+://)?.*@", re.DOTALL)


@dataclass(frozen=True)
class Credentials:
    """A base URL and the API key that is sent to it."""

    base_url: str
    key: str | None = field(repr=False)
    is_official: bool
    """The URL belongs to the provider itself, not to a compatible server."""
    uses_identity: bool = False
    """There is no key: calls are authenticated by the machine's cloud identity, such as a role or a logged-in user."""
    key_variable: str | None = None
    """The environment variable that has the key; `None` if the caller passed it."""

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Adds to an `AuthenticationError` of the block which environment variable has the key that was rejected."""
        try:
            yield
        except AuthenticationError as error:
            if self.key_variable:
                error.args = (f"{error} (the key is that of {self.key_variable})",)
            raise

    @property
    def secrets(self) -> tuple[str | None, ...]:
        """The values that must not appear in errors."""
        return self.key, urlsplit(self.base_url).password


@dataclass(frozen=True)
class Endpoint:
    """A provider's default URL and the environment variables that configure it."""

    provider: str
    base_url: str
    address_variable: str
    key_variables: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    """Hosts of a paid service, which requires a key; empty for self-hosted servers, which may run anywhere."""
    prices: str = ""
    """The provider's name in the price data; by default `provider`."""
    has_identity: bool = False
    """Without a key, calls use the machine's cloud identity, where a key of the environment would be sent."""
    is_free: bool = True
    """Whether a self-hosted server costs nothing; a gateway to paid services does not."""

    def matches(self, base_url: str) -> bool:
        """Returns whether `base_url` belongs to this provider; always true for self-hosted servers."""
        host = urlsplit(base_url).hostname or ""
        return not self.hosts or any(host == name or host.endswith(f".{name}") for name in self.hosts)

    def price_of(self, model: str, credentials: Credentials) -> Price | None:
        """Looks up the price of `model` at this endpoint: free if self-hosted, `None` if unknown."""
        if not credentials.is_official:
            return None
        if self.hosts:
            return price_of(self.prices or self.provider, model)
        return FREE if self.is_free else None

    def credentials(
        self,
        model: str,
        *,
        base_url: str | None,
        api_key: str | None,
        default_url: str | None = None,
        names_identity: bool = False,
    ) -> Credentials:
        """Resolves URL and key for `model`: arguments take precedence over the environment, and that over the defaults.

        Args:
            model: the model's name, for errors.
            base_url: the URL that the caller passes.
            api_key: the key that the caller passes.
            default_url: takes the place of the endpoint's own URL, for services with one a region.
            names_identity: the caller passes a cloud identity, which is used in place of the environment's key.

        Raises:
            ConfigError: the key is missing or the URL is invalid.
        """
        address = _address(base_url or os.environ.get(self.address_variable) or default_url or self.base_url)
        is_official = self.matches(address)
        is_trusted = is_official or not base_url
        key, variable = usable_key("api_key", api_key), None
        if key is None and is_trusted and not names_identity:
            key, variable = self._find_key(os.environ)
        if key is None and self.has_identity and (is_trusted or names_identity):
            return Credentials(address, None, is_official, uses_identity=True)
        if key is None and is_official and self.hosts:
            raise ConfigError(
                f"{self.provider}:{model} needs a key: set {self.key_variables[0]} or pass api_key=..., "
                "or pass base_url=... for a server that needs none"
            )
        return Credentials(address, key, is_official, key_variable=variable)

    def _find_key(self, environ: Mapping[str, str]) -> tuple[str | None, str | None]:
        """Returns the first API key that is set in `environ` and the variable's name."""
        keys = ((usable_key(name, environ.get(name)), name) for name in self.key_variables)
        return next(((key, name) for key, name in keys if key), (None, None))


def usable_key(origin: str, text: str | None) -> str | None:
    """Strips the white space that secret files often add around a key; returns `None` for an empty one.

    Raises:
        ConfigError: the key can't be sent in a header. The message contains `origin` (a variable or argument) only.
    """
    key = (text or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"{origin} is not a valid API key: it contains a line break or a non-ASCII character; copy the key again"
        )
    return key or None


def redact_url(url: str) -> str:
    """Removes user name, password, query and fragment from `url`, so that it can be printed."""
    return re.split("[?#]", _USER_INFO.sub(r"\1", url))[0]


def _address(url: str) -> str:
    address = url.strip()
    try:
        parts = urlsplit(address)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an incomplete IPv6 address, or a port that is not a number
        is_valid = False
    if not is_valid:
        redacted = redact_url(address)
        raise ConfigError(f"base_url {redacted!r} is not a valid URL: write one such as 'http://localhost:8000/v1'")
    return address
