"""`ModelEntry`: a model in a pool file, with its options, and with its secrets in environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_conductor._internal.imports import import_object
from rl_conductor.errors import ConfigError
from rl_conductor.models import PROVIDERS, Model, adapter, expected_providers, model, providers
from rl_conductor.models.adapter_options import checked_options, describe_option_error
from rl_conductor.models.redaction import is_secret_name
from rl_conductor.pool.function_model import FunctionModel, is_worker_function
from rl_conductor.types import Names, Price

MODEL_ARGUMENTS = ("base_url", "headers", "max_retries", "organization")
"""Arguments of models that are easily taken for settings of a worker."""


class Entry(BaseModel):
    """A table of a file that users write: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)


class ModelEntry(Entry):
    """A model in a pool file."""

    unknown_fields: ClassVar[Mapping[str, str]] = {
        "api_key": 'keys are not written in files; name the environment variable: api_key_env = "MY_API_KEY"',
        **{name: f"an argument of the model; write options = {{ {name} = ... }}" for name in MODEL_ARGUMENTS},
    }
    """Error messages for fields that users may expect here."""

    model: str = Field(examples=['model = "openai:gpt-6-sol"'])
    """`provider:model`, `conductor:FILE` for the conductor of another pool file, or `module:Class`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the adapter, such as `base_url`. API keys are rejected; they belong in the environment."""
    api_key_env: str | None = None
    """Name of the environment variable with the API key, which is sent to `base_url`."""
    headers_env: dict[str, str] = Field(default_factory=dict)
    """Headers of every request, each with the name of the environment variable that holds its value."""
    price: Price | None = None
    """Overrides the price from the price table."""
    tags: Names = frozenset()
    region: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, entry: Any) -> Any:
        """Accepts the name of a model as the whole entry."""
        return {"model": entry} if isinstance(entry, str) else entry

    def build(self) -> Model:
        """Creates the model with its options and price.

        Raises:
            ConfigError: the model does not exist, or an option is invalid or an API key.
        """
        if "api_key" in self.options:
            raise ConfigError(
                f"{self.model}: options.api_key is not allowed in a file; set it in the environment, and name the "
                'variable as api_key_env = "MY_API_KEY"'
            )
        self._check_secrets()
        options = self._checked_options()
        options |= self._secret_options(options.get("headers") or {})
        if self.price is not None:
            options["price"] = self.price
        try:
            return _create_model(self.model, options)
        except TypeError as error:
            raise ConfigError(f"{self.model}: invalid options: {self._describe(error)}") from error

    def _check_secrets(self) -> None:
        """Raises `ConfigError` for a secret among the options, which are written to files and traces."""
        headers = self.options.get("headers")
        for header in headers if isinstance(headers, Mapping) else ():
            if is_secret_name(str(header)):
                raise ConfigError(
                    f"{self.model}: the header {header} is not allowed in a file; set it in the environment, and name "
                    f'the variable as headers_env = {{ {header} = "MY_HEADER" }}'
                )
        try:
            password = urlsplit(str(self.options.get("base_url", ""))).password
        except ValueError as error:
            raise ConfigError(f"{self.model}: options.base_url is no URL: {error}") from error
        if password:
            raise ConfigError(
                f"{self.model}: a password in options.base_url is not allowed in a file; set a header in the "
                'environment, and name the variable as headers_env = { Authorization = "MY_HEADER" }'
            )

    def _checked_options(self) -> dict[str, Any]:
        """Returns the options with the types that the provider's adapter has for them."""
        provider = self.model.partition(":")[0]
        if provider not in PROVIDERS and provider not in providers():
            return dict(self.options)
        try:
            return checked_options(self.options, adapter(provider))
        except ConfigError as error:
            raise ConfigError(f"{self.model}: {error}") from None

    def _describe(self, error: TypeError) -> str:
        provider = self.model.partition(":")[0]
        source = adapter(provider) if provider in providers() else import_object(self.model)
        return describe_option_error(error, source)

    def _secret_options(self, headers: Mapping[str, str]) -> dict[str, Any]:
        """Reads the key, and headers to add to `headers`, from the environment."""
        options: dict[str, Any] = {}
        if self.api_key_env is not None:
            options["api_key"] = read_variable(self.api_key_env, self.model).strip()
        if self.headers_env:
            options["headers"] = {**headers, **read_secret_headers(self.headers_env, self.model)}
        return options

    def relative_to(self, folder: Path) -> Self:
        """Resolves the path of a `conductor:FILE` model, which is relative to the file that names it."""
        provider, _, path = self.model.partition(":")
        return self.model_copy(update={"model": f"{provider}:{folder / path}"}) if provider == "conductor" else self


def is_import_path(name: str) -> bool:
    """Returns whether the name of a model is `module:Class`, and not `provider:model`."""
    provider, _, attribute = name.partition(":")
    return provider not in PROVIDERS and attribute.isidentifier() and provider not in providers()


def _create_model(name: str, options: Mapping[str, Any]) -> Model:
    """Creates the model `provider:name`, or an instance of the class `module:Class`."""
    if not is_import_path(name):
        return model(name, **options)
    try:
        model_class = import_object(name)
    except ConfigError as error:
        raise ConfigError(f"no model {name!r}: {expected_providers(name)}, or 'module:Class'; {error}") from None
    instance = FunctionModel(model_class) if is_worker_function(model_class) else model_class(**options)
    if not isinstance(instance, Model):
        raise ConfigError(f"{name} is not a subclass of rl_conductor.Model, nor a function")
    return instance


def read_variable(name: str, reader: str) -> str:
    """Returns the value of an environment variable; `reader` is the model or server that needs it.

    Raises:
        ConfigError: it is not set.
    """
    value = os.environ.get(name, "")
    if not value.strip():
        raise ConfigError(f"{reader}: the environment variable {name} is not set")
    return value


def read_secret_headers(variables: Mapping[str, str], reader: str) -> dict[str, str]:
    """Returns the values of headers, given their environment variables."""
    return {header: read_variable(variable, reader).strip() for header, variable in variables.items()}
