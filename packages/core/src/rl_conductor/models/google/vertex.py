"""`VertexModel`: Google's models on Google Vertex AI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from rl_conductor.errors import ConfigError
from rl_conductor.models.clouds.gcp import VERTEX, find_place, translate_google_auth_errors
from rl_conductor.models.endpoints import Credentials
from rl_conductor.models.google.adapter import GoogleModel

try:
    from google import genai
    from google.genai import types as wire
    from google.oauth2.credentials import Credentials as AccessToken
except ImportError as missing:
    raise ConfigError("Gemini on Vertex AI needs Google's SDK: pip install 'rl-conductor[vertex]'") from missing


class VertexModel(GoogleModel):
    """A Gemini model on Vertex AI, authenticated by the application default credentials or an access token."""

    endpoint: ClassVar = VERTEX

    def __init__(self, name: str, *, project: str | None = None, location: str | None = None, **options: Any) -> None:
        """Configures the model; the first call opens the connection.

        Args:
            name: the id of the model, such as `gemini-3.8-flash`.
            project: the project in Google Cloud; by default `GOOGLE_CLOUD_PROJECT`.
            location: the location; by default `GOOGLE_CLOUD_LOCATION`, else `global`.
            options: as for `GoogleModel`; `api_key` is an access token.

        Raises:
            ConfigError: the project is missing or the URL is invalid.
        """
        self._place = find_place(f"vertex:{name}", project, location)
        super().__init__(name, **options)

    def _resolve_credentials(self, base_url: str | None, api_key: str | None) -> Credentials:
        return self.endpoint.credentials(self._model, base_url=base_url, api_key=api_key, default_url=self._place.url)

    def _sdk_client(self, options: wire.HttpOptions) -> genai.Client:
        # Without credentials the SDK would send those of the machine's identity to any host.
        token = None if self._credentials.uses_identity else AccessToken(token=self._credentials.key or "none")  # type: ignore[no-untyped-call]
        return genai.Client(
            vertexai=True,
            project=self._place.project,
            location=self._place.location,
            credentials=token,
            http_options=options,
        )

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        with super()._translate_errors(), translate_google_auth_errors(self.name):
            yield
