"""`BedrockModel`: models on Amazon Bedrock that have OpenAI's protocol there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from rl_conductor.errors import AuthenticationError, ConfigError
from rl_conductor.models.clouds.aws import BedrockBase
from rl_conductor.models.endpoints import ENDPOINTS
from rl_conductor.models.openai.adapter import OpenAIModel
from rl_conductor.models.vendor_errors import MAX_ERROR_LENGTH

try:
    import openai
    from openai.providers.bedrock import bedrock
except ImportError as missing:
    raise ConfigError("models on Bedrock need openai 3.50 or newer: pip install 'rl-conductor[bedrock]'") from missing


class BedrockModel(BedrockBase, OpenAIModel):
    """A model of any vendor but Anthropic on Bedrock, authenticated by a Bedrock API key or by AWS credentials."""

    endpoint: ClassVar = ENDPOINTS["bedrock"]
    url: ClassVar = "https://bedrock-mantle.{region}.api.aws/openai/v1"
    default_dialect: ClassVar = "compatible"

    def _sdk_client(self, **settings: Any) -> openai.AsyncOpenAI:
        credentials = self._credentials
        provider = bedrock(
            region=self._region,
            base_url=credentials.base_url,
            api_key=None if credentials.uses_identity else credentials.key or "none",
            profile=self._profile if credentials.uses_identity else None,
        )
        return openai.AsyncOpenAI(provider=provider, **settings)

    def _extra_headers(self) -> dict[str, Any]:
        return self._headers  # the SDK's provider sets `Authorization` itself

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        with super()._translate_errors():
            try:
                yield
            except openai.APIError:
                raise
            except openai.OpenAIError as error:  # no credentials, or they can't be loaded
                raise AuthenticationError(f"{self.name}: {error}"[:MAX_ERROR_LENGTH], model=self.name) from None
