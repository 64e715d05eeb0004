"""`GoogleModel`: Google's Gemini models, through the REST protocol of its Gemini API.

Requests are those of the vendor's SDK (google-genai), which has no public way to send one without copying it and
building an object for each part of the reply. The protocol is in `wire`, `reply` and `events`; this module handles
keys, connections, deadlines and errors. A grammar, which the API lacks, raises `BadRequestError` before the call.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, ClassVar

from rl_conductor._internal.formatting import parse_seconds
from rl_conductor.errors import AuthenticationError, ConfigError, ContextLengthError, ModelError
from rl_conductor.models.base import DEFAULT_TIMEOUT, Capabilities
from rl_conductor.models.endpoints import ENDPOINTS
from rl_conductor.models.google.events import EventReader
from rl_conductor.models.google.reply import Reply
from rl_conductor.models.google.wire import Json, body_of
from rl_conductor.models.http.connections import connection_settings
from rl_conductor.models.http.model import HTTPModel
from rl_conductor.models.vendor_errors import MAX_ERROR_LENGTH, parse_retry_after, quote_body, status_error
from rl_conductor.types import Price, Request

try:
    import httpx2
except ImportError as missing:
    raise ConfigError("Google's models need the library 'httpx2': pip install 'rl-conductor[google]'") from missing

CAPABILITIES = Capabilities(
    tools=True, images=True, files=True, json_schema=True, array_bounds=True, reasoning_start="outside"
)

TOO_LONG = re.compile(r"token count.*exceeds|exceeds.*number of tokens", re.IGNORECASE)

OVERLOADED = "UNAVAILABLE"
"""The API's own name of status 503."""

RETRY_DELAY = re.compile(r'"retryDelay":\s*"([^"]*)"')


class _APIError(Exception):
    """The API reports an error, in the status of a response or in its body."""

    def __init__(self, response: httpx2.Response, body: bytes) -> None:
        super().__init__("an error of the API")
        self.response = response
        self.text = body.decode(errors="replace")


def api_version(stable: str, *, beta: str) -> str:
    """Returns the version of the API, which `GOOGLE_GENAI_API_VERSION` can replace, as in the vendor's SDK."""
    version = os.environ.get("GOOGLE_GENAI_API_VERSION") or stable
    return beta if version == "beta" else version


class GoogleModel(HTTPModel):
    """A model of Google, or of a server that implements the Gemini API."""

    endpoint: ClassVar = ENDPOINTS["google"]
    library_errors: ClassVar = (_APIError, httpx2.HTTPError)
    timeouts: ClassVar = (httpx2.TimeoutException,)
    connection_errors: ClassVar = (httpx2.RequestError,)

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        price: Price | None = None,
        capabilities: Capabilities = CAPABILITIES,
    ) -> None:
        """Configures the model; the first call opens the connection.

        Args:
            name: the vendor's name of the model.
            api_key: the key, sent to `base_url`. By default `GEMINI_API_KEY` or `GOOGLE_API_KEY`, which are sent only
                to the vendor or to `GOOGLE_GEMINI_BASE_URL`.
            base_url: the URL of the API; by default `GOOGLE_GEMINI_BASE_URL`, else the vendor's own.
            price: by default the vendor's listed price; unknown for other servers.
            capabilities: the features of the model.

        Raises:
            ConfigError: the key is missing, or the name or the URL is invalid.
        """
        super().__init__(name, base_url=base_url, api_key=api_key, price=price)
        self.capabilities = capabilities
        self._url = self._method_url("generateContent")
        self._stream_url = self._method_url("streamGenerateContent?alt=sse")

    def _method_url(self, method: str) -> httpx2.URL:
        """Returns the address of a method of the model."""
        if not self._model or re.search(r"\.\.|[?&#]", self._model):
            raise ConfigError(f"{self.name!r} is not the name of a model")
        try:
            return httpx2.URL(f"{self._credentials.base_url.rstrip('/')}/{self._path()}:{method}")
        except httpx2.InvalidURL as error:
            raise ConfigError(f"the address of {self.name!r} is not a valid URL: {error}") from None

    def _path(self) -> str:
        """Returns the version of the API and the full name of the model."""
        is_full_name = self._model.startswith(("models/", "tunedModels/"))
        model = self._model if is_full_name else f"models/{self._model}"
        return f"{api_version('v1', beta='v1beta')}/{model}"

    def _client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(**connection_settings(httpx2))

    async def _close(self, client: httpx2.AsyncClient) -> None:
        await client.aclose()

    def _reply(self, request: Request) -> Reply:
        return Reply(self.name, earlier_calls=sum(len(message.tool_calls) for message in request.messages))

    def _body(self, request: Request) -> Json:
        return body_of(request, model=self.name)

    async def _post(self, body: Json, request: Request) -> object:
        """Sends the request and returns the JSON of its response."""
        response = await self._clients.get().post(self._url, **await self._options(body, request))
        if not response.is_success:
            raise _APIError(response, response.content)
        self._reject_web_page(response)
        return _parse(response, response.content)

    async def _events(self, body: Json, request: Request) -> AsyncGenerator[object, None]:
        options = await self._options(body, request)
        async with self._clients.get().stream("POST", self._stream_url, **options) as response:
            if not response.is_success:
                raise _APIError(response, await response.aread())
            self._reject_web_page(response)
            async with aclosing(_chunks(response)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _options(self, body: Json, request: Request) -> dict[str, Any]:
        timeout = request.timeout or DEFAULT_TIMEOUT
        headers = {"content-type": "application/json", "x-server-timeout": str(math.ceil(timeout))}
        # ASCII, because arguments of tools may contain half of a surrogate pair, which UTF-8 can't encode.
        content = json.dumps(body).encode()
        return {"content": content, "headers": headers | await self._authorization(), "timeout": timeout}

    async def _authorization(self) -> dict[str, str]:
        """Returns the headers that authenticate a request."""
        return {"x-goog-api-key": self._credentials.key or "none"}

    # --------------------------------------------------------------------------------------- errors

    def _error(self, error: Exception) -> ModelError:
        return self._api_error(error.response, error.text) if isinstance(error, _APIError) else super()._error(error)

    def _api_error(self, response: httpx2.Response, body: str) -> ModelError:
        fields = _error_fields(body)
        status = _status(response, fields)
        reason = fields.get("message") or quote_body(body, status) or f"HTTP status {status}"
        text = f"{self.name}: {reason}"[:MAX_ERROR_LENGTH]
        if status == 400 and "API_KEY_INVALID" in body:
            return AuthenticationError(text, model=self.name, status=status)
        if status == 400 and TOO_LONG.search(text):
            return ContextLengthError(text, model=self.name, status=status)
        delay = RETRY_DELAY.search(body)
        wait = parse_retry_after(response.headers.get("retry-after")) or parse_seconds(delay and delay[1])
        is_overload = status == 503 and fields.get("status") == OVERLOADED
        return status_error(text, model=self.name, status=status, retry_after=wait, is_overload=is_overload)


async def _chunks(response: httpx2.Response) -> AsyncGenerator[object, None]:
    """Yields the chunks of a streamed reply."""
    reader = EventReader()
    async for piece in response.aiter_bytes():
        for data in reader.add(piece):
            yield _parse(response, data)
    for data in reader.end():
        yield _parse(response, data)


def _parse(response: httpx2.Response, data: bytes) -> object:
    """Parses a reply or an event of a stream, which may be an error in spite of the response's status."""
    chunk = _unwrap(json.loads(data))
    if isinstance(chunk, dict) and chunk.get("error"):
        raise _APIError(response, data)
    return chunk


def _unwrap(body: object) -> object:
    """Returns the only element of a list: the API sometimes encloses an error in one."""
    return body[0] if isinstance(body, list) and len(body) == 1 else body


def _error_fields(body: str) -> dict[str, Any]:
    """Returns the fields of an error, which has none if the body is not the API's."""
    try:
        error = _unwrap(json.loads(body))
    except (ValueError, RecursionError):
        return {}
    error = error.get("error", error) if isinstance(error, dict) else error
    return error if isinstance(error, dict) else {}


def _status(response: httpx2.Response, fields: dict[str, Any]) -> int:
    """Returns the status of the response, or if that is a success, as at the start of a stream, that of the error."""
    if not response.is_success:
        return response.status_code
    code = fields.get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else 500
