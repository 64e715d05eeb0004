"""Models on Amazon Bedrock and Google Vertex AI: selects the adapter by the protocol that a model has there."""

from __future__ import annotations

from typing import Any, Literal

from rl_conductor.errors import ConfigError
from rl_conductor.models.base import Model

BedrockProtocol = Literal["anthropic", "openai"]


def bedrock_model(name: str, *, protocol: BedrockProtocol | None = None, **options: Any) -> Model:
    """Creates a model on Amazon Bedrock.

    Args:
        name: the id of the model or inference profile, such as `us.anthropic.claude-sonnet-5-5`, or an ARN.
        protocol: `anthropic` for Claude, `openai` for all others; by default told by the name, except for ARNs that
            don't contain the model's name.
        options: `aws_region` and `aws_profile`, and those of `AnthropicModel` or `OpenAIModel`.

    Raises:
        ConfigError: the protocol is unknown, the region is missing, or a library is not installed.
    """
    protocol = protocol or ("anthropic" if "anthropic." in name else "openai")
    if protocol == "anthropic":
        from rl_conductor.models.anthropic.bedrock import BedrockClaudeModel  # noqa: PLC0415  (a vendor's library)

        return BedrockClaudeModel(name, **options)
    if protocol == "openai":
        from rl_conductor.models.openai.bedrock import BedrockModel  # noqa: PLC0415  (a vendor's library)

        return BedrockModel(name, **options)
    raise ConfigError(f"bedrock:{name}: protocol={protocol!r} is unknown; write 'anthropic' or 'openai'")


def vertex_model(name: str, **options: Any) -> Model:
    """Creates a model on Google Vertex AI: Claude if the name contains `claude`, else Gemini.

    Args:
        name: the id of the model, such as `gemini-3.8-flash` or `claude-sonnet-5-5`.
        options: `project` and `location`, and those of `GoogleModel` or `AnthropicModel`.

    Raises:
        ConfigError: the project is missing, or a library is not installed.
    """
    if "claude" in name:
        from rl_conductor.models.anthropic.vertex import VertexClaudeModel  # noqa: PLC0415  (a vendor's library)

        return VertexClaudeModel(name, **options)
    from rl_conductor.models.google.vertex import VertexModel  # noqa: PLC0415  (a vendor's library)

    return VertexModel(name, **options)
