"""The providers of models, and whether their libraries and keys are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Self

from rl_conductor.models.endpoints import ENDPOINTS, Endpoint

NO_KEY = "no key needed"


@dataclass(frozen=True)
class Provider:
    """The libraries and keys that a provider's models need."""

    extra: str
    """The extra that installs its libraries."""
    libraries: tuple[str, ...]
    keys: tuple[str, ...] = ()
    """Variables of which one holds the key."""
    without_key: str = NO_KEY
    """The credentials that are used without a key; empty if a key is required."""

    @classmethod
    def of(cls, endpoint: Endpoint) -> Self:
        """Returns the requirements of an endpoint's models."""
        without_key = endpoint.identity or ("" if endpoint.hosts else NO_KEY)
        return cls(endpoint.extra, endpoint.libraries, endpoint.key_variables, without_key)

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


PROVIDERS = {name: Provider.of(endpoint) for name, endpoint in ENDPOINTS.items()} | {
    "a2a": Provider("a2a", ("a2a-sdk",)),
    "embedded": Provider("local", ("xllamacpp",)),
    "llamacpp": Provider("local", ("xllamacpp",)),
    "transformers": Provider("transformers", ("transformers",)),
    "vllm": Provider("vllm", ("vllm",)),
}
"""All providers of this package but `conductor:`, which has the requirements of its models."""
