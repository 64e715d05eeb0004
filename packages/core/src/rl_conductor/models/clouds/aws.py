"""AWS settings, and the base of the adapters for Amazon Bedrock."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, ClassVar

from rl_conductor._internal.version import is_importable
from rl_conductor.errors import ConfigError
from rl_conductor.models.endpoints import Credentials
from rl_conductor.models.http.model import HTTPModel


def find_region(model: str, aws_region: str | None, aws_profile: str | None) -> str:
    """Returns the AWS region: the argument, the environment's, or that of the profile in AWS's configuration files.

    Raises:
        ConfigError: there is none, or the libraries for AWS are not installed.
    """
    if not is_importable("botocore"):
        raise ConfigError(f"{model} needs the libraries for AWS: pip install 'rl-conductor[bedrock]'")
    region = aws_region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        session = import_module("botocore.session").Session(profile=aws_profile)
        try:
            region = session.get_config_variable("region")
        except import_module("botocore.exceptions").BotoCoreError as error:
            raise ConfigError(f"{model}: the AWS configuration can't be used: {error}") from None
    if not region:
        raise ConfigError(f"{model} needs a region: set AWS_REGION, or pass aws_region=..., such as 'us-east-1'")
    return region


class BedrockBase(HTTPModel):
    """The base of adapters of models on Bedrock: its address, with an API key or the credentials of AWS."""

    url: ClassVar[str]
    """The address in a `{region}`."""

    def __init__(
        self, name: str, *, aws_region: str | None = None, aws_profile: str | None = None, **options: Any
    ) -> None:
        """Configures the model; the first call opens the connection.

        Args:
            name: the id of the model or inference profile.
            aws_region: the region; by default `AWS_REGION`, `AWS_DEFAULT_REGION` or that of the profile.
            aws_profile: a profile of AWS's configuration files; requests are signed even if there is an API key.
            options: as for other models with the same protocol.

        Raises:
            ConfigError: the region is missing, the URL is invalid, or a library is not installed.
        """
        self._profile = aws_profile
        self._region = find_region(f"bedrock:{name}", aws_region, aws_profile)
        super().__init__(name, **options)

    def _resolve_credentials(self, base_url: str | None, api_key: str | None) -> Credentials:
        default_url, has_profile = self.url.format(region=self._region), bool(self._profile)
        return self.endpoint.credentials(
            self._model, base_url=base_url, api_key=api_key, default_url=default_url, names_identity=has_profile
        )
