"""Rows of the contract suite's table for clouds: vendors' protocols at other addresses, with other credentials."""

from __future__ import annotations

from functools import partial
from typing import Any

from rl_conductor.models import Model
from rl_conductor.models.clouds.protocols import bedrock_model, vertex_model
from rl_conductor.models.openai.azure import AzureModel
from rl_conductor.models.openai.services import LiteLLMModel

from .subject import FAULTS, SCENARIOS, Adapter
from .wire.base import SECRET
from .wire.clouds import (
    CLAUDE,
    PROJECT,
    REGION,
    AzureWire,
    BedrockClaudeWire,
    BedrockWire,
    GatewayWire,
    VertexClaudeWire,
    VertexWire,
)

OPENAI_SAMPLING = frozenset({"temperature", "top_p", "max_tokens", "seed", "stop", "effort"})
ANTHROPIC_SAMPLING = frozenset({"temperature", "top_p", "max_tokens", "stop", "effort"})
AWS = (("AWS_REGION", REGION),)
GOOGLE = (("GOOGLE_CLOUD_PROJECT", PROJECT),)


def make(create: Any, prefix: str, path: str, scenario: str, url: str, **options: Any) -> Model:
    """A model whose service is at `url`."""
    made: Model = create(f"{prefix}{scenario}", **{"base_url": f"{url}{path}", "api_key": SECRET} | options)
    return made


CLOUD_ADAPTERS = [
    Adapter(
        "azure",
        partial(make, partial(AzureModel, api_version="2024-10-21"), "", ""),
        SCENARIOS | FAULTS,
        service=AzureWire,
        variables=("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT"),
        sampling=OPENAI_SAMPLING,
    ),
    Adapter(
        "litellm",
        partial(make, LiteLLMModel, "", "/v1"),
        SCENARIOS - {"file"} | FAULTS,
        service=GatewayWire,
        variables=("LITELLM_API_KEY", "LITELLM_BASE_URL"),
        path="/v1",
        sampling=OPENAI_SAMPLING,
    ),
    Adapter(
        "bedrock",
        partial(make, bedrock_model, "", "/openai/v1"),
        SCENARIOS - {"file"} | FAULTS,
        service=BedrockWire,
        variables=("AWS_BEARER_TOKEN_BEDROCK", "AWS_BEDROCK_BASE_URL"),
        path="/openai/v1",
        environment=AWS,
        sampling=OPENAI_SAMPLING,
    ),
    Adapter(
        "bedrock",
        partial(make, bedrock_model, "anthropic.", ""),
        SCENARIOS | FAULTS,
        service=BedrockClaudeWire,
        variables=("AWS_BEARER_TOKEN_BEDROCK", "ANTHROPIC_BEDROCK_BASE_URL"),
        prefix="anthropic.",
        environment=AWS,
        sampling=ANTHROPIC_SAMPLING,
    ),
    Adapter(
        "vertex",
        partial(make, vertex_model, "", ""),
        SCENARIOS - {"stop-sequence"} | FAULTS,  # its API does not report stop sequences
        service=VertexWire,
        variables=("GOOGLE_OAUTH_ACCESS_TOKEN", "GOOGLE_VERTEX_BASE_URL"),
        environment=GOOGLE,
        sampling=OPENAI_SAMPLING,
    ),
    Adapter(
        "vertex",
        partial(make, vertex_model, CLAUDE, ""),
        SCENARIOS | FAULTS,
        service=VertexClaudeWire,
        variables=("GOOGLE_OAUTH_ACCESS_TOKEN", "GOOGLE_VERTEX_BASE_URL"),
        prefix=CLAUDE,
        environment=GOOGLE,
        sampling=ANTHROPIC_SAMPLING,
    ),
]
