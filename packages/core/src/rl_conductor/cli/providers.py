"""The providers of models: their libraries, and the environment variables with their keys and addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class Provider:
    """The libraries and environment variables that a provider's models need."""

    extra: str = ""
    """The extra that installs its libraries."""
    libraries: tuple[str, ...] = ()
    """The packages of the extra that its adapter imports."""
    keys: tuple[str, ...] = ()
    """Variables of which one holds the key."""
    addresses: tuple[str, ...] = ()
    """Variables with URLs."""
    settings: tuple[str, ...] = ()
    """Other variables, whose values are no secrets."""
    without_key: str = ""
    """What authenticates calls without a key; empty if a key is required."""

    def missing_libraries(self) -> list[str]:
        """Returns the libraries that are not installed."""
        return [name for name in self.libraries if not _is_installed(name)]

    def keys_in(self, environ: Mapping[str, str]) -> list[str]:
        """Returns the variables with keys that are set."""
        return [name for name in self.keys if environ.get(name, "").strip()]


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _service(name: str, without_key: str = "") -> Provider:
    """A service with OpenAI's protocol."""
    return Provider("openai", ("openai",), (f"{name}_API_KEY",), (f"{name}_BASE_URL",), without_key=without_key)


NO_KEY = "no key needed"
PROVIDERS = {
    "a2a": Provider("a2a", ("a2a-sdk",), without_key=NO_KEY),
    "anthropic": Provider("anthropic", ("anthropic",), ("ANTHROPIC_API_KEY",), ("ANTHROPIC_BASE_URL",)),
    "azure": Provider(
        "azure",
        ("openai", "azure-identity"),
        ("AZURE_OPENAI_API_KEY",),
        ("AZURE_OPENAI_ENDPOINT",),
        ("OPENAI_API_VERSION",),
        "Entra identity",
    ),
    "bedrock": Provider(
        "bedrock",
        ("anthropic", "openai", "boto3"),
        ("AWS_BEARER_TOKEN_BEDROCK",),
        ("ANTHROPIC_BEDROCK_BASE_URL", "AWS_BEDROCK_BASE_URL"),
        ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"),
        "AWS credentials",
    ),
    "deepseek": _service("DEEPSEEK"),
    "fireworks": _service("FIREWORKS"),
    "google": Provider("google", ("httpx2",), ("GEMINI_API_KEY", "GOOGLE_API_KEY"), ("GOOGLE_GEMINI_BASE_URL",)),
    "groq": _service("GROQ"),
    "litellm": _service("LITELLM", NO_KEY),
    "mistral": _service("MISTRAL"),
    "ollama": _service("OLLAMA", NO_KEY),
    "openai": _service("OPENAI"),
    "openrouter": _service("OPENROUTER"),
    "together": _service("TOGETHER"),
    "vertex": Provider(
        "vertex",
        ("anthropic", "google-auth"),
        ("GOOGLE_OAUTH_ACCESS_TOKEN",),
        ("GOOGLE_VERTEX_BASE_URL",),
        ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"),
        "application default credentials",
    ),
    "vllm-server": Provider("openai", ("openai",), ("VLLM_API_KEY",), ("VLLM_BASE_URL",), without_key=NO_KEY),
    "xai": _service("XAI"),
    "embedded": Provider("local", ("xllamacpp",), without_key=NO_KEY),
    "llamacpp": Provider("local", ("xllamacpp",), without_key=NO_KEY),
    "transformers": Provider("transformers", ("transformers",), without_key=NO_KEY),
    "vllm": Provider("vllm", ("vllm",), without_key=NO_KEY),
}
"""All providers of this package but `conductor:`, which needs what its models need."""
