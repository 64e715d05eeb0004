"""Where vendors' services are, which key goes there, and what of an address may be shown; no library is needed.

A key of the environment goes to its own service and to the address that the environment names for that service; one
that the caller passes goes where the caller says. No adapter follows redirects, which would take it anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from rl_conductor.errors import ConfigError
from rl_conductor.models.prices import price_of
from rl_conductor.types import FREE, Price

_CREDENTIALS = re.compile(r"^(\w+://)?.*@", re.DOTALL)


@dataclass(frozen=True)
class Access:
    """An address and the key that goes there."""

    base_url: str
    key: str | None = field(repr=False)
    at_home: bool
    """The address is the service's own, not that of one that imitates it."""

    @property
    def secrets(self) -> tuple[str | None, ...]:
        """What no error may show."""
        return self.key, urlsplit(self.base_url).password


@dataclass(frozen=True)
class Service:
    """Where a provider is found and what it needs."""

    provider: str
    base_url: str
    address_variable: str
    key_variables: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    """The hosts of a paid service, which needs a key; empty for a server that users run themselves, anywhere."""

    def is_at(self, base_url: str) -> bool:
        """Whether `base_url` leads to this service; what users run themselves is wherever they say it is."""
        host = urlsplit(base_url).hostname or ""
        return not self.hosts or any(host == name or host.endswith(f".{name}") for name in self.hosts)

    def price_of(self, model: str, access: Access) -> Price | None:
        """What `model` costs there: nothing where users run it themselves, `None` where it is not known."""
        if not access.at_home:
            return None
        return price_of(self.provider, model) if self.hosts else FREE

    def access(self, model: str, *, base_url: str | None, api_key: str | None) -> Access:
        """The way to `model`: arguments go before the environment, and that before the service's own address.

        Raises:
            ConfigError: no usable key or address was found.
        """
        address = _address(base_url or os.environ.get(self.address_variable) or self.base_url)
        at_home = self.is_at(address)
        key = usable_key("api_key", api_key)
        if key is None and (at_home or not base_url):
            key = self.key_in(os.environ)
        if key is None and at_home and self.hosts:
            raise ConfigError(
                f"{self.provider}:{model} needs a key: set {self.key_variables[0]} or pass api_key=..., "
                "or pass base_url=... for a server that needs none"
            )
        return Access(address, key, at_home)

    def key_in(self, environ: Mapping[str, str]) -> str | None:
        """The key that the environment holds for this service."""
        keys = (usable_key(name, environ.get(name)) for name in self.key_variables)
        return next((key for key in keys if key), None)


def usable_key(origin: str, text: str | None) -> str | None:
    """The key in `text`, less the blank space around it that files of secrets often bring; `None` without one.

    Raises:
        ConfigError: no header can hold it; the message names `origin` (a variable or an argument), never the key.
    """
    key = (text or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"{origin} holds no key: there is a line break, a typographic quote or the like in it; copy the key again"
        )
    return key or None


def shown_address(url: str) -> str:
    """`url` as it may be shown: without a name and password, and without its query, which may hold a key."""
    return re.split("[?#]", _CREDENTIALS.sub(r"\1", url))[0]


def _address(url: str) -> str:
    address = url.strip()
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half of an IPv6 address, or a port that is no number
        good = False
    if not good:
        shown = shown_address(address)
        raise ConfigError(f"base_url {shown!r} is no address: write one such as 'http://localhost:8000/v1'")
    return address
