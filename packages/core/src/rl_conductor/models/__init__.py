"""Language models behind one interface; `model("provider:name")` makes any of them.

Each adapter lives in the file of its provider and imports that vendor's library only when it is built.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rl_conductor.errors import ConfigError
from rl_conductor.models.base import Capabilities, Model

ADAPTERS = {
    "anthropic": "rl_conductor.models.anthropic:AnthropicModel",
    "coder": "rl_conductor.workers.coder:CoderModel",
    "embedded": "rl_conductor.models.embedded:EmbeddedModel",
    "google": "rl_conductor.models.google:GoogleModel",
    "llamacpp": "rl_conductor.models.llamacpp:LlamaCppModel",
    "ollama": "rl_conductor.models.openai:OllamaModel",
    "openai": "rl_conductor.models.openai:OpenAIModel",
    "openrouter": "rl_conductor.models.openai:OpenRouterModel",
    "reader": "rl_conductor.workers.reader:ReaderModel",
    "transformers": "rl_conductor.models.transformers:TransformersModel",
    "vllm": "rl_conductor.models.vllm:VLLMModel",
    "vllm-server": "rl_conductor.models.openai:VLLMServerModel",
    "writer": "rl_conductor.workers.writer:WriterModel",
}
"""Provider name to adapter class."""


def model(name: str, **options: Any) -> Model:
    """The model called `provider:name`, such as `openai:gpt-5`.

    Args:
        name: provider, a colon, and the model as that provider names it (a path or hub name for local ones).
        options: passed to the adapter, such as `base_url`, `api_key` or `price`.

    Raises:
        ConfigError: no such provider, a missing library or a missing key; the message names the cure.
    """
    provider, colon, rest = name.partition(":")
    if not colon or not rest or provider not in ADAPTERS:
        raise ConfigError(f"no model {name!r}: write 'provider:model' with a provider of {', '.join(sorted(ADAPTERS))}")
    module, _, attribute = ADAPTERS[provider].partition(":")
    made: Model = getattr(import_module(module), attribute)(rest, **options)
    return made


__all__ = ["ADAPTERS", "Capabilities", "Model", "model"]
