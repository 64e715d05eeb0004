"""`BedrockClaudeModel`: Anthropic's models on Amazon Bedrock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from rl_conductor.errors import AuthenticationError, BadResponseError, ConfigError
from rl_conductor.models.anthropic.adapter import STATUS_BY_TYPE, AnthropicModel, SDKClient
from rl_conductor.models.clouds.aws import BedrockBase
from rl_conductor.models.endpoints import BEDROCK_CLAUDE
from rl_conductor.models.vendor_errors import MAX_ERROR_LENGTH

try:
    import anthropic
except ImportError as missing:
    raise ConfigError("Anthropic's models on Bedrock need its SDK: pip install 'rl-conductor[bedrock]'") from missing


class BedrockClaudeModel(BedrockBase, AnthropicModel):
    """A model of Anthropic on Bedrock, authenticated by a Bedrock API key or by AWS credentials (Signature V4)."""

    endpoint: ClassVar = BEDROCK_CLAUDE
    url: ClassVar = "https://bedrock-runtime.{region}.amazonaws.com"
    status_by_type: ClassVar = STATUS_BY_TYPE | {
        "throttlingException": 429,
        "validationException": 400,
        "modelTimeoutException": 408,
        "serviceUnavailableException": 503,
    }

    def _sdk_client(self, **settings: Any) -> SDKClient:
        client = anthropic.AsyncAnthropicBedrock(
            api_key=self._credentials.key or "none",  # else the SDK would send the environment's to any host
            aws_region=self._region,
            base_url=self._credentials.base_url,
            **settings,
        )
        if self._credentials.uses_identity:
            client.api_key, client.aws_profile = None, self._profile
        return client

    def _is_overload(self, error: anthropic.APIStatusError) -> bool:
        """AWS names its error in a header, and in a stream as its type, with a small first letter."""
        name = error.response.headers.get("x-amzn-errortype") or str(error.type)
        return super()._is_overload(error) or name.lower().startswith("serviceunavailableexception")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        with super()._translate_errors(), _translate_aws_errors(self.name):
            yield


@contextmanager
def _translate_aws_errors(model: str) -> Iterator[None]:
    """Translates errors of signing, such as missing credentials, and of decoding a stream."""
    try:
        yield
    except Exception as error:
        module = type(error).__module__
        if module in ("botocore.eventstream", "botocore.parsers"):
            raise BadResponseError(f"{model}: the stream is malformed: {error}", model=model) from None
        is_missing = isinstance(error, RuntimeError) and "AWS credentials" in str(error)
        if not is_missing and module != "botocore.exceptions":
            raise
        advice = f"set {BEDROCK_CLAUDE.key_variables[0]}, or configure AWS, for example with AWS_PROFILE"
        text = f"{model}: no AWS credentials: {error}; {advice}"[:MAX_ERROR_LENGTH]
        raise AuthenticationError(text, model=model) from None
