"""`VertexModel`: Google's models on Google Vertex AI."""

from __future__ import annotations

import asyncio
from typing import Any

from rl_conductor._internal.per_loop import PerLoop
from rl_conductor.errors import ConfigError
from rl_conductor.models.clouds.gcp import VertexBase, find_place
from rl_conductor.models.google.adapter import GoogleModel, api_version

try:
    import google.auth
    from google.auth.credentials import Credentials as GoogleCredentials
except ImportError as missing:
    raise ConfigError("Gemini on Vertex AI needs google-auth: pip install 'rl-conductor[vertex]'") from missing

SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class Identity:
    """The application default credentials of this machine, with a token that is refreshed when it expires."""

    def __init__(self) -> None:
        self._credentials: GoogleCredentials | None = None
        self._locks = PerLoop(asyncio.Lock)

    def __reduce__(self) -> tuple[type[Identity], tuple[()]]:
        return type(self), ()  # another process loads its own

    async def authorization(self) -> dict[str, str]:
        """Returns the headers that authenticate a request. Raises the errors of google-auth."""
        credentials = self._credentials
        if credentials is None or not credentials.valid:
            async with self._locks.get():  # so that of all calls at once a single one refreshes the token
                credentials = self._credentials
                if credentials is None or not credentials.valid:
                    credentials = self._credentials = await asyncio.to_thread(_refresh, credentials)
        headers = {"authorization": f"Bearer {credentials.token}"}
        if credentials.quota_project_id:
            headers["x-goog-user-project"] = credentials.quota_project_id
        return headers


def _refresh(credentials: GoogleCredentials | None) -> GoogleCredentials:
    """Loads the credentials if there are none, and requests a token. Blocks."""
    from google.auth.transport.requests import Request  # noqa: PLC0415  (imports requests, which is slow)

    if credentials is None:
        credentials, _ = google.auth.default(scopes=[SCOPE])
    if not credentials.valid:
        credentials.refresh(Request())  # type: ignore[no-untyped-call]
    return credentials


class VertexModel(VertexBase, GoogleModel):
    """A Gemini model on Vertex AI, authenticated by the application default credentials or an access token."""

    def __init__(self, name: str, *, project: str | None = None, location: str | None = None, **options: Any) -> None:
        """Configures the model; the first call opens the connection.

        Args:
            name: the id of the model, such as `gemini-3.8-flash`.
            project: the project in Google Cloud; by default `GOOGLE_CLOUD_PROJECT`.
            location: the location; by default `GOOGLE_CLOUD_LOCATION`, else `global`.
            options: as for `GoogleModel`; `api_key` is an access token.

        Raises:
            ConfigError: the project is missing, or the name or the URL is invalid.
        """
        self._place = find_place(f"vertex:{name}", project, location)
        self._identity = Identity()
        super().__init__(name, **options)

    def _path(self) -> str:
        version = api_version("v1beta1", beta="v1beta1")
        if self._model.startswith("projects/"):
            return f"{version}/{self._model}"
        model = self._model
        if not model.startswith(("models/", "publishers/")):
            publisher, slash, name = model.partition("/")
            model = f"publishers/{publisher}/models/{name}" if slash else f"publishers/google/models/{model}"
        return f"{version}/projects/{self._place.project}/locations/{self._place.location}/{model}"

    async def _authorization(self) -> dict[str, str]:
        if self._credentials.uses_identity:
            return await self._identity.authorization()
        return {"authorization": f"Bearer {self._credentials.key or 'none'}"}
