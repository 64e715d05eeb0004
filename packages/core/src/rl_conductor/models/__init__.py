"""Language models behind one interface: a request goes in, a completion or a stream of deltas comes out.

`model("provider:name")` creates any of them. Each provider has its own folder; its vendor's library is imported only
when one of its models is created. Other packages add providers through the entry point group `rl_conductor.models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any

from rl_conductor.errors import ConfigError
from rl_conductor.models.base import Capabilities, Model

ENTRY_POINTS = "rl_conductor.models"
PROVIDERS = {
    "a2a": "rl_conductor.agents.a2a_agent:A2AAgent",
    "anthropic": "rl_conductor.models.anthropic.adapter:AnthropicModel",
    "azure": "rl_conductor.models.openai.azure:AzureModel",
    "bedrock": "rl_conductor.models.clouds.protocols:bedrock_model",
    "conductor": "rl_conductor.conductor_provider:conductor_from_file",
    "deepseek": "rl_conductor.models.openai.services:DeepSeekModel",
    "embedded": "rl_conductor.models.llamacpp.embedded:EmbeddedModel",
    "fireworks": "rl_conductor.models.openai.services:FireworksModel",
    "google": "rl_conductor.models.google.adapter:GoogleModel",
    "groq": "rl_conductor.models.openai.services:GroqModel",
    "litellm": "rl_conductor.models.openai.services:LiteLLMModel",
    "llamacpp": "rl_conductor.models.llamacpp.adapter:LlamaCppModel",
    "mistral": "rl_conductor.models.openai.services:MistralModel",
    "ollama": "rl_conductor.models.openai.services:OllamaModel",
    "openai": "rl_conductor.models.openai.adapter:OpenAIModel",
    "openrouter": "rl_conductor.models.openai.services:OpenRouterModel",
    "together": "rl_conductor.models.openai.services:TogetherModel",
    "transformers": "rl_conductor.models.transformers.adapter:TransformersModel",
    "vertex": "rl_conductor.models.clouds.protocols:vertex_model",
    "vllm": "rl_conductor.models.vllm.adapter:VLLMModel",
    "vllm-server": "rl_conductor.models.openai.services:VLLMServerModel",
    "xai": "rl_conductor.models.openai.services:XAIModel",
}
"""The providers of this package: their names and `module:class`, or a function that creates the model."""
VENDOR_PREFIXES = {"gpt-": "openai", "claude-": "anthropic", "gemini-": "google"}
"""The beginnings of vendors' model names, and the provider that a name without one lacks."""


@cache
def providers() -> Mapping[str, str]:
    """Returns all installed providers as name and `module:class`; those of this package can't be overridden."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, and only needed here

    return {entry.name: entry.value for entry in entry_points(group=ENTRY_POINTS)} | PROVIDERS


def model(name: str, **options: Any) -> Model:
    """Creates the model called `provider:name`, such as `openai:gpt-6-sol`.

    Args:
        name: provider, a colon, and the model as that provider names it (a path or hub name for local ones).
        options: passed to the adapter, such as `base_url`, `api_key` or `price`.

    Raises:
        ConfigError: the provider is unknown, or its library or key is missing; the message says what to do.
    """
    provider, colon, rest = name.partition(":")
    is_provider = provider in PROVIDERS or provider in providers()
    if is_provider and not rest:
        raise ConfigError(f"no model {name!r}: {provider} is a provider; name one of its models as '{provider}:MODEL'")
    if not colon or not is_provider:
        raise ConfigError(f"no model {name!r}: {expected_providers(name)}")
    instance: Model = adapter(provider)(rest, **options)
    return instance


def expected_providers(name: str) -> str:
    """Returns the advice for a name with an unknown provider: the providers, and perhaps a similar one."""
    provider, colon, rest = name.partition(":")
    names = sorted(providers())
    similar = get_close_matches(provider, names, 1, 0.8) if colon else []
    if not colon:
        similar, rest = [vendor for start, vendor in VENDOR_PREFIXES.items() if name.startswith(start)], name
    hint = f"; did you mean '{similar[0]}:{rest}'?" if similar else ""
    return f"write 'provider:model' with a provider of {', '.join(names)}{hint}"


def adapter(provider: str) -> Any:
    """Imports the class of a provider's models, or the function that creates them."""
    adapters = PROVIDERS if provider in PROVIDERS else providers()
    module, _, attribute = adapters[provider].partition(":")
    return getattr(import_module(module), attribute)


__all__ = ["PROVIDERS", "Capabilities", "Model", "adapter", "expected_providers", "model", "providers"]
