"""Services and servers with OpenAI's protocol: an address, the variables of its key, and a dialect each."""

from __future__ import annotations

from typing import ClassVar

from rl_conductor.models.endpoints import Endpoint
from rl_conductor.models.openai.adapter import OpenAIModel


class OpenRouterModel(OpenAIModel):
    """A model served by OpenRouter."""

    endpoint: ClassVar = Endpoint(
        provider="openrouter",
        base_url="https://openrouter.ai/api/v1",
        address_variable="OPENROUTER_BASE_URL",
        key_variables=("OPENROUTER_API_KEY",),
        hosts=("openrouter.ai",),
    )
    default_dialect: ClassVar = "openrouter"


class OllamaModel(OpenAIModel):
    """A model of Ollama's server."""

    endpoint: ClassVar = Endpoint(
        provider="ollama",
        base_url="http://localhost:11434/v1",
        address_variable="OLLAMA_BASE_URL",
        key_variables=("OLLAMA_API_KEY",),
    )
    default_dialect: ClassVar = "compatible"


class VLLMServerModel(OpenAIModel):
    """A model of vLLM's server; `vllm:` runs one in this process instead."""

    endpoint: ClassVar = Endpoint(
        provider="vllm-server",
        base_url="http://localhost:8000/v1",
        address_variable="VLLM_BASE_URL",
        key_variables=("VLLM_API_KEY",),
    )
    default_dialect: ClassVar = "vllm"


class DeepSeekModel(OpenAIModel):
    """A model of DeepSeek."""

    endpoint: ClassVar = Endpoint(
        provider="deepseek",
        base_url="https://api.deepseek.com/v1",
        address_variable="DEEPSEEK_BASE_URL",
        key_variables=("DEEPSEEK_API_KEY",),
        hosts=("deepseek.com",),
    )
    default_dialect: ClassVar = "compatible"


class FireworksModel(OpenAIModel):
    """A model served by Fireworks."""

    endpoint: ClassVar = Endpoint(
        provider="fireworks",
        base_url="https://api.fireworks.ai/inference/v1",
        address_variable="FIREWORKS_BASE_URL",
        key_variables=("FIREWORKS_API_KEY",),
        hosts=("fireworks.ai",),
    )
    default_dialect: ClassVar = "compatible"


class GroqModel(OpenAIModel):
    """A model served by Groq."""

    endpoint: ClassVar = Endpoint(
        provider="groq",
        base_url="https://api.groq.com/openai/v1",
        address_variable="GROQ_BASE_URL",
        key_variables=("GROQ_API_KEY",),
        hosts=("groq.com",),
    )
    default_dialect: ClassVar = "compatible"


class LiteLLMModel(OpenAIModel):
    """A model behind a LiteLLM gateway; its price is unknown unless you pass one."""

    endpoint: ClassVar = Endpoint(
        provider="litellm",
        base_url="http://localhost:4000/v1",
        address_variable="LITELLM_BASE_URL",
        key_variables=("LITELLM_API_KEY",),
        is_free=False,
    )
    default_dialect: ClassVar = "compatible"


class MistralModel(OpenAIModel):
    """A model of Mistral."""

    endpoint: ClassVar = Endpoint(
        provider="mistral",
        base_url="https://api.mistral.ai/v1",
        address_variable="MISTRAL_BASE_URL",
        key_variables=("MISTRAL_API_KEY",),
        hosts=("mistral.ai",),
    )
    default_dialect: ClassVar = "mistral"


class TogetherModel(OpenAIModel):
    """A model served by Together."""

    endpoint: ClassVar = Endpoint(
        provider="together",
        base_url="https://api.together.xyz/v1",
        address_variable="TOGETHER_BASE_URL",
        key_variables=("TOGETHER_API_KEY",),
        hosts=("together.xyz",),
    )
    default_dialect: ClassVar = "compatible"


class XAIModel(OpenAIModel):
    """A model of xAI."""

    endpoint: ClassVar = Endpoint(
        provider="xai",
        base_url="https://api.x.ai/v1",
        address_variable="XAI_BASE_URL",
        key_variables=("XAI_API_KEY",),
        hosts=("x.ai",),
        prices="x-ai",
    )
    default_dialect: ClassVar = "compatible"
