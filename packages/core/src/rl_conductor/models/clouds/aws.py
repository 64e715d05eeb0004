"""AWS settings that the adapters for Amazon Bedrock share."""

from __future__ import annotations

import os
from importlib import import_module

from rl_conductor._internal.version import is_importable
from rl_conductor.errors import ConfigError


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
