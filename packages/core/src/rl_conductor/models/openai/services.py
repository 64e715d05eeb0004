"""Services and servers with OpenAI's protocol: an endpoint and a dialect each."""

from __future__ import annotations

from typing import ClassVar

from rl_conductor.models.endpoints import ENDPOINTS
from rl_conductor.models.openai.adapter import OpenAIModel


class OpenRouterModel(OpenAIModel):
    """A model served by OpenRouter."""

    endpoint: ClassVar = ENDPOINTS["openrouter"]
    default_dialect: ClassVar = "openrouter"


class OllamaModel(OpenAIModel):
    """A model of Ollama's server."""

    endpoint: ClassVar = ENDPOINTS["ollama"]
    default_dialect: ClassVar = "compatible"


class VLLMServerModel(OpenAIModel):
    """A model of vLLM's server; `vllm:` runs one in this process instead."""

    endpoint: ClassVar = ENDPOINTS["vllm-server"]
    default_dialect: ClassVar = "vllm"


class DeepSeekModel(OpenAIModel):
    """A model of DeepSeek."""

    endpoint: ClassVar = ENDPOINTS["deepseek"]
    default_dialect: ClassVar = "compatible"


class FireworksModel(OpenAIModel):
    """A model served by Fireworks."""

    endpoint: ClassVar = ENDPOINTS["fireworks"]
    default_dialect: ClassVar = "compatible"


class GroqModel(OpenAIModel):
    """A model served by Groq."""

    endpoint: ClassVar = ENDPOINTS["groq"]
    default_dialect: ClassVar = "compatible"


class LiteLLMModel(OpenAIModel):
    """A model behind a LiteLLM gateway; its price is unknown unless you pass one."""

    endpoint: ClassVar = ENDPOINTS["litellm"]
    default_dialect: ClassVar = "compatible"


class MistralModel(OpenAIModel):
    """A model of Mistral."""

    endpoint: ClassVar = ENDPOINTS["mistral"]
    default_dialect: ClassVar = "mistral"


class TogetherModel(OpenAIModel):
    """A model served by Together."""

    endpoint: ClassVar = ENDPOINTS["together"]
    default_dialect: ClassVar = "compatible"


class XAIModel(OpenAIModel):
    """A model of xAI."""

    endpoint: ClassVar = ENDPOINTS["xai"]
    default_dialect: ClassVar = "compatible"
