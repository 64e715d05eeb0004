"""Endpoints of providers: their addresses, keys and libraries in one table.

A key from the environment is sent only to the official endpoint or to the address that the environment names for it; a
key that the caller passes is sent to the caller's `base_url`. No adapter follows redirects, which could leak the key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from rl_conductor.errors import AuthenticationError, ConfigError
from rl_conductor.models.prices import price_of
from rl_conductor.models.urls import is_http_url, redact_url, url_secrets
from rl_conductor.types import FREE, Price


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
        return self.key, *url_secrets(self.base_url)


@dataclass(frozen=True)
class Endpoint:
    """A provider's default URL, the environment variables that configure it, and the libraries of its adapter."""

    provider: str
    base_url: str
    address_variable: str
    key_variables: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    """Hosts of a paid service, which requires a key; empty for self-hosted servers, which may run anywhere."""
    subdomains: str = r"(.+\.)?"
    """A regular expression of the part in front of `hosts`, for domains in which customers have hosts, too."""
    prices: str = ""
    """The provider's name in the price data; by default `provider`."""
    identity: str = ""
    """The machine's cloud identity that calls use without a key, where a key of the environment would be sent."""
    settings: tuple[str, ...] = ()
    """Other environment variables, whose values are no secrets."""
    extra: str = "openai"
    """The extra that installs the libraries."""
    libraries: tuple[str, ...] = ("openai",)
    is_free: bool = True
    """Whether a self-hosted server costs nothing; a gateway to paid services does not."""

    def matches(self, base_url: str) -> bool:
        """Returns whether `base_url` belongs to this provider; always true for self-hosted servers."""
        host = urlsplit(base_url).hostname or ""
        return not self.hosts or any(re.fullmatch(self.subdomains + re.escape(name), host) for name in self.hosts)

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
            ConfigError: the key is missing, or the URL is invalid or would send it unencrypted to the provider.
        """
        own_url = os.environ.get(self.address_variable)
        address = _address(base_url or own_url or default_url or self.base_url)
        is_official = self.matches(address)
        if is_official and self.hosts and urlsplit(address).scheme != "https":
            redacted = redact_url(address)
            raise ConfigError(f"base_url {redacted!r} would send the key unencrypted: write 'https://' instead")
        is_trusted = is_official or bool(own_url and not base_url)
        key, variable = usable_key("api_key", api_key), None
        if key is None and is_trusted and not names_identity:
            key, variable = self._find_key(os.environ)
        if key is None and self.identity and (is_trusted or names_identity):
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


def _address(url: str) -> str:
    address = url.strip()
    if not is_http_url(address):
        redacted = redact_url(address)
        raise ConfigError(f"base_url {redacted!r} is not a valid URL: write one such as 'http://localhost:8000/v1'")
    if re.search("[?#]", address):
        advice = "leave out what follows the '?' or '#', as paths are added to the end; pass a key as api_key=..."
        raise ConfigError(f"base_url {redact_url(address)!r} has a query or a fragment: {advice}")
    return address


# ------------------------------------------------------------------------------------------- table


def _service(provider: str, base_url: str, *hosts: str, name: str = "", **facts: Any) -> Endpoint:
    """Creates an endpoint with the variables `NAME_BASE_URL` and `NAME_API_KEY`; by default, NAME is the provider."""
    name = name or provider.upper()
    return Endpoint(provider, base_url, f"{name}_BASE_URL", (f"{name}_API_KEY",), hosts, **facts)


_ALL = (
    _service(
        "anthropic", "https://api.anthropic.com", "api.anthropic.com", extra="anthropic", libraries=("anthropic",)
    ),
    Endpoint(
        provider="azure",
        base_url="",
        address_variable="AZURE_OPENAI_ENDPOINT",
        key_variables=("AZURE_OPENAI_API_KEY",),
        hosts=(
            "openai.azure.com",
            "cognitiveservices.azure.com",
            "services.ai.azure.com",
            "openai.azure.us",
            "openai.azure.cn",
        ),
        identity="Entra identity",
        settings=("OPENAI_API_VERSION",),
        extra="azure",
        libraries=("openai", "azure-identity"),
    ),
    Endpoint(
        provider="bedrock",
        base_url="",
        address_variable="AWS_BEDROCK_BASE_URL",
        key_variables=("AWS_BEARER_TOKEN_BEDROCK",),
        hosts=("amazonaws.com", "amazonaws.com.cn", "amazonaws.eu", "api.aws"),
        subdomains=r"(vpce-[^.]+\.)?bedrock-[a-z-]+\.[a-z]+(-[a-z]+)+-\d+\.(vpce\.)?",
        prices="aws",
        identity="AWS credentials",
        settings=("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"),
        extra="bedrock",
        libraries=("anthropic", "openai", "boto3"),
    ),
    _service("deepseek", "https://api.deepseek.com/v1", "deepseek.com"),
    _service("fireworks", "https://api.fireworks.ai/inference/v1", "fireworks.ai"),
    Endpoint(
        provider="google",
        base_url="https://generativelanguage.googleapis.com/",
        address_variable="GOOGLE_GEMINI_BASE_URL",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        hosts=("generativelanguage.googleapis.com",),
        extra="google",
        libraries=("httpx2",),
    ),
    _service("groq", "https://api.groq.com/openai/v1", "groq.com"),
    _service("litellm", "http://localhost:4000/v1", is_free=False),
    _service("mistral", "https://api.mistral.ai/v1", "mistral.ai"),
    _service("ollama", "http://localhost:11434/v1"),
    _service("openai", "https://api.openai.com/v1", "openai.com", "openai.azure.com"),
    _service("openrouter", "https://openrouter.ai/api/v1", "openrouter.ai"),
    _service("together", "https://api.together.xyz/v1", "together.xyz"),
    Endpoint(
        provider="vertex",
        base_url="https://aiplatform.googleapis.com",
        address_variable="GOOGLE_VERTEX_BASE_URL",
        key_variables=("GOOGLE_OAUTH_ACCESS_TOKEN",),
        hosts=("googleapis.com",),
        prices="google",
        identity="application default credentials",
        settings=("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"),
        extra="vertex",
        libraries=("anthropic", "google-auth"),
    ),
    _service("vllm-server", "http://localhost:8000/v1", name="VLLM"),
    _service("xai", "https://api.x.ai/v1", "x.ai", prices="x-ai"),
)
ENDPOINTS = {endpoint.provider: endpoint for endpoint in _ALL}
"""The endpoint of each provider that has one."""
BEDROCK_CLAUDE = replace(ENDPOINTS["bedrock"], address_variable="ANTHROPIC_BEDROCK_BASE_URL")
"""The endpoint of Anthropic's protocol on Bedrock."""
