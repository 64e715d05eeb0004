"""Google Cloud settings and errors that the adapters for Vertex AI share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from rl_conductor.errors import AuthenticationError, ConfigError, UnreachableError
from rl_conductor.models.endpoints import ENDPOINTS, Credentials
from rl_conductor.models.http.model import HTTPModel
from rl_conductor.models.vendor_errors import MAX_ERROR_LENGTH

MULTI_REGIONS = ("us", "eu")


@dataclass(frozen=True)
class Place:
    """A project of Google Cloud, and a location in which its models run."""

    project: str
    location: str

    @property
    def url(self) -> str:
        """The address of Vertex AI in this location."""
        if self.location == "global":
            return ENDPOINTS["vertex"].base_url
        if self.location in MULTI_REGIONS:
            return f"https://aiplatform.{self.location}.rep.googleapis.com"
        return f"https://{self.location}-aiplatform.googleapis.com"


def find_place(model: str, project: str | None, location: str | None) -> Place:
    """Returns the project and the location: the arguments, the environment's, or `global`.

    Raises:
        ConfigError: there is no project.
    """
    project = project or os.environ.get("GOOGLE_CLOUD_PROJECT")
    if not project:
        raise ConfigError(f"{model} needs a project: set GOOGLE_CLOUD_PROJECT or pass project=...")
    return Place(project, location or os.environ.get("GOOGLE_CLOUD_LOCATION") or "global")


class VertexBase(HTTPModel):
    """The base of adapters of models on Vertex AI: its address, and the errors of its authentication."""

    endpoint: ClassVar = ENDPOINTS["vertex"]
    _place: Place

    def _resolve_credentials(self, base_url: str | None, api_key: str | None) -> Credentials:
        return self.endpoint.credentials(self._model, base_url=base_url, api_key=api_key, default_url=self._place.url)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translates errors of google-auth, too: there are no credentials, or they can't be refreshed."""
        with super()._translate_errors():
            try:
                yield
            except Exception as error:
                if not type(error).__module__.startswith("google.auth."):
                    raise
                text = " ".join(f"{self.name}: no Google Cloud credentials: {error}".split())[:MAX_ERROR_LENGTH]
                error_type = UnreachableError if type(error).__name__ == "TransportError" else AuthenticationError
                raise error_type(text, model=self.name) from None
