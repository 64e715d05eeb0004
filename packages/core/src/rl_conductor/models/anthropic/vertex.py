"""`VertexClaudeModel`: Anthropic's models on Google Vertex AI."""

from __future__ import annotations

from typing import Any

from rl_conductor._internal.version import is_importable
from rl_conductor.errors import ConfigError
from rl_conductor.models.anthropic.adapter import AnthropicModel, SDKClient
from rl_conductor.models.clouds.gcp import VertexBase, find_place

try:
    import anthropic
except ImportError as missing:
    raise ConfigError("Anthropic's models on Vertex AI need its SDK: pip install 'rl-conductor[vertex]'") from missing


class VertexClaudeModel(VertexBase, AnthropicModel):
    """A model of Anthropic on Vertex AI, authenticated by the application default credentials or an access token."""

    def __init__(self, name: str, *, project: str | None = None, location: str | None = None, **options: Any) -> None:
        """Configures the model; the first call opens the connection.

        Args:
            name: the id of the model, such as `claude-sonnet-5-5`.
            project: the project in Google Cloud; by default `GOOGLE_CLOUD_PROJECT`.
            location: the location; by default `GOOGLE_CLOUD_LOCATION`, else `global`.
            options: as for `AnthropicModel`; `api_key` is an access token.

        Raises:
            ConfigError: the project is missing, the URL is invalid, or google-auth is not installed.
        """
        if not is_importable("google.auth"):
            raise ConfigError(f"vertex:{name} needs google-auth: pip install 'rl-conductor[vertex]'")
        self._place = find_place(f"vertex:{name}", project, location)
        super().__init__(name, **options)

    def _sdk_client(self, **settings: Any) -> SDKClient:
        return anthropic.AsyncAnthropicVertex(
            project_id=self._place.project,
            region=self._place.location,
            base_url=f"{self._credentials.base_url.rstrip('/')}/v1",
            # Without a token the SDK would send that of the machine's identity to any host.
            access_token=None if self._credentials.uses_identity else self._credentials.key or "none",
            **settings,
        )

    def _is_overload(self, error: anthropic.APIStatusError) -> bool:
        """Google's own errors have a status in words."""
        fields = error.body.get("error") if isinstance(error.body, dict) else None
        return super()._is_overload(error) or (isinstance(fields, dict) and fields.get("status") == "UNAVAILABLE")
