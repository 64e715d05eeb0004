"""`AzureModel`: models that are deployed in Azure OpenAI or Azure AI Foundry."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from rl_conductor._internal.version import is_importable
from rl_conductor.errors import AuthenticationError, ConfigError, UnreachableError
from rl_conductor.models.endpoints import ENDPOINTS, Credentials
from rl_conductor.models.openai.adapter import OpenAIModel
from rl_conductor.models.vendor_errors import MAX_ERROR_LENGTH

try:
    import openai
except ImportError as missing:
    raise ConfigError("Azure's models need the library 'openai': pip install 'rl-conductor[azure]'") from missing

TOKEN_SCOPE = "https://cognitiveservices.azure.com/.default"  # noqa: S105 - a name of a right


class AzureModel(OpenAIModel):
    """A deployment in Azure, authenticated by the resource's key or by the machine's Entra identity."""

    endpoint: ClassVar = ENDPOINTS["azure"]

    def __init__(
        self,
        name: str,
        *,
        api_version: str | None = None,
        token_scope: str = TOKEN_SCOPE,
        dialect: str = "openai",
        **options: Any,
    ) -> None:
        """Configures the model; the first call opens the connection.

        Args:
            name: the name of the deployment. The price is looked up under it, so pass `price` if it is not the model's.
            api_version: a dated version such as `2024-10-21`, by default `OPENAI_API_VERSION`; without one, the
                API `v1`, which has no versions.
            token_scope: the right that a token of the Entra identity needs; national clouds have other names.
            dialect: as for `OpenAIModel`.
            options: as for `OpenAIModel`; `base_url` is the address of the resource.

        Raises:
            ConfigError: the address is missing or invalid, or without a key the library azure-identity.
        """
        self._api_version = api_version or os.environ.get("OPENAI_API_VERSION") or None
        self._token_scope = token_scope
        super().__init__(name, dialect=dialect, **options)

    @property
    def _refuses_array_bounds(self) -> bool:
        return True

    def _resolve_credentials(self, base_url: str | None, api_key: str | None) -> Credentials:
        name, variable = f"azure:{self._model}", self.endpoint.address_variable
        if not (base_url or os.environ.get(variable)):
            raise ConfigError(
                f"{name} needs the address of your resource: set {variable} or pass base_url=..., such as "
                "'https://my-resource.openai.azure.com'"
            )
        credentials = super()._resolve_credentials(base_url, api_key)
        if credentials.uses_identity and not is_importable("azure.identity"):
            raise ConfigError(
                f"{name} needs a key: set {self.endpoint.key_variables[0]}, pass api_key=..., or install the library "
                "for Entra identities: pip install 'rl-conductor[azure]'"
            )
        resource = credentials.base_url.rstrip("/").removesuffix("/v1").removesuffix("/openai")
        return replace(credentials, base_url=resource)

    def _sdk_client(self, **settings: Any) -> openai.AsyncOpenAI:
        credentials = self._credentials
        token_provider = _token_provider(self._token_scope) if credentials.uses_identity else None
        key = None if token_provider else credentials.key or "none"
        if self._api_version is None:
            return openai.AsyncOpenAI(
                base_url=f"{credentials.base_url}/openai/v1", api_key=token_provider or key, **settings
            )
        return openai.AsyncAzureOpenAI(
            azure_endpoint=credentials.base_url,
            api_version=self._api_version,
            api_key=key,
            azure_ad_token_provider=token_provider,
            **settings,
        )

    def _extra_headers(self) -> dict[str, Any]:
        """Returns the headers of every request; without a key or an identity, no credentials are sent."""
        headers = super()._extra_headers()
        return {"api-key": openai.Omit(), **headers} if "Authorization" in headers else headers

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        with super()._translate_errors(), _translate_identity_errors(self.name):
            yield


def _token_provider(scope: str) -> Callable[[], Awaitable[str]]:
    """Returns a function that returns a valid token of the machine's Entra identity."""
    # An extra, and 0.4 s to import.
    from azure.identity import DefaultAzureCredential, get_bearer_token_provider  # noqa: PLC0415

    provider = get_bearer_token_provider(DefaultAzureCredential(), scope)

    async def token() -> str:
        return await asyncio.to_thread(provider)

    return token


@contextmanager
def _translate_identity_errors(model: str) -> Iterator[None]:
    """Translates errors of azure-identity; its class names tell whether the service was reached."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("azure."):
            raise
        text = " ".join(f"{model}: no token of the Entra identity: {error}".split())[:MAX_ERROR_LENGTH]
        reached = type(error).__name__ in ("ClientAuthenticationError", "CredentialUnavailableError")
        raise (AuthenticationError if reached else UnreachableError)(text, model=model) from None
