"""`GoogleModel`: Google's Gemini models, through the vendor's own SDK (google-genai) and its Gemini API.

The protocol is in `wire`; this module handles keys, connections, deadlines and errors. Features that the API lacks
raise `BadRequestError` before the call: a grammar, disabled parallel tool calls.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import ClassVar

from rl_conductor._internal.formatting import parse_seconds
from rl_conductor._internal.sync import PerLoop
from rl_conductor.errors import (
    AuthenticationError,
    BadResponseError,
    ConfigError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    UnreachableError,
)
from rl_conductor.models.base import (
    MALFORMED_REPLY_ERRORS,
    MAX_ERROR_LENGTH,
    Capabilities,
    checked,
    is_connection_lost,
    require,
    status_error,
    within,
)
from rl_conductor.models.connections import connection_settings, tls_context
from rl_conductor.models.endpoints import Credentials, Endpoint, redact_url
from rl_conductor.models.redaction import redacting
from rl_conductor.models.reply_limit import ACCEPTED_ENCODINGS, ReplyLimitError, limit_reply
from rl_conductor.types import Completion, Delta, Price, Request

try:
    import httpx2
    from google import genai
    from google.genai import errors
    from google.genai import types as wire

    from rl_conductor.models.google.wire import Reply, config_of, contents_of
except ImportError as missing:
    raise ConfigError("Google's models need its SDK: pip install 'rl-conductor[google]'") from missing

CAPABILITIES = Capabilities(
    tools=True, images=True, files=True, json_schema=True, array_bounds=True, reasoning_start="outside"
)

TOO_LONG = re.compile(r"token count.*exceeds|exceeds.*number of tokens", re.IGNORECASE)

RETRY_DELAY = re.compile(r'"retryDelay": "([^"]*)"')

_LATEST_RESPONSE: ContextVar[httpx2.Response | None] = ContextVar("_LATEST_RESPONSE", default=None)
"""The latest response of this task, to close it: the SDK leaves it open when a stream is closed early."""


async def _store_response(response: httpx2.Response) -> None:
    _LATEST_RESPONSE.set(response)


def _connections() -> httpx2.AsyncClient:
    hooks = {"response": [limit_reply, _store_response]}
    return httpx2.AsyncClient(headers=ACCEPTED_ENCODINGS, event_hooks=hooks, **connection_settings(httpx2))


class GoogleModel:
    """A model of Google, or of a server that implements the Gemini API."""

    endpoint: ClassVar = Endpoint(
        provider="google",
        base_url="https://generativelanguage.googleapis.com/",
        address_variable="GOOGLE_GEMINI_BASE_URL",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        hosts=("generativelanguage.googleapis.com",),
    )

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
            ConfigError: the key is missing or the URL is invalid.
        """
        self.name = f"{self.endpoint.provider}:{name}"
        self.capabilities = capabilities
        self._model = name
        self._credentials = self._resolve_credentials(base_url, api_key)
        self.price = price or self.endpoint.price_of(name, self._credentials)
        # By default the SDK uses aiohttp if it is installed, with different errors and its own retries.
        self._connections = PerLoop(_connections)
        self._clients = PerLoop(self._client)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r})"

    def _resolve_credentials(self, base_url: str | None, api_key: str | None) -> Credentials:
        return self.endpoint.credentials(self._model, base_url=base_url, api_key=api_key)

    async def complete(self, request: Request) -> Completion:
        """Returns the complete reply."""
        require(self, request)
        contents, config = contents_of(request, model=self.name), config_of(request, model=self.name)
        reply = Reply(request, model=self.name)
        with redacting(*self._credentials.secrets), self._translate_errors():
            async with asyncio.timeout(request.timeout):
                models = self._clients.get().aio.models
                reply.add(await models.generate_content(model=self._model, contents=contents, config=config))
            return checked(reply.completion(self.price))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply as deltas."""
        require(self, request)
        reply = Reply(request, model=self.name)
        chunks = self._chunks(contents_of(request, model=self.name), config_of(request, model=self.name))
        with redacting(*self._credentials.secrets), self._translate_errors():
            async with aclosing(within(request.timeout, chunks)) as chunks_in_time:
                async for chunk in chunks_in_time:
                    delta = reply.add(chunk)
                    if delta.text or delta.reasoning:
                        yield delta
            yield Delta(completion=checked(reply.completion(self.price)))

    async def aclose(self) -> None:
        """Closes the connections of the running event loop; the next call opens new ones."""
        self._clients.drop()
        connections = self._connections.drop()
        if connections is not None:
            await connections.aclose()

    def _client(self) -> genai.Client:
        context = tls_context(httpx2)
        options = wire.HttpOptions(
            base_url=self._credentials.base_url,
            httpx_async_client=self._connections.get(),
            async_client_args={"verify": context, "ssl": context},  # also for the SDK's clients that are not used here
            retry_options=wire.HttpRetryOptions(attempts=1),
        )
        return self._sdk_client(options)

    def _sdk_client(self, options: wire.HttpOptions) -> genai.Client:
        """Creates the SDK's client with the model's credentials."""
        key = self._credentials.key or "none"  # without a key the SDK would look for other credentials and send those
        return genai.Client(vertexai=False, api_key=key, http_options=options)

    async def _chunks(
        self, contents: list[wire.Content], config: wire.GenerateContentConfig
    ) -> AsyncGenerator[wire.GenerateContentResponse, None]:
        models = self._clients.get().aio.models
        stream = await models.generate_content_stream(model=self._model, contents=contents, config=config)
        response = None
        try:
            async for chunk in stream:
                response = response or _LATEST_RESPONSE.get()
                yield chunk
        finally:
            if response is not None:
                await response.aclose()

    # --------------------------------------------------------------------------------------- errors

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (errors.APIError, httpx2.HTTPError, TimeoutError, ReplyLimitError, *MALFORMED_REPLY_ERRORS) as error:
            raise self._error(error) from None  # the SDK's own error may quote the key

    def _error(self, error: Exception) -> ModelError:
        if isinstance(error, errors.APIError):
            return self._api_error(error)
        if isinstance(error, httpx2.TimeoutException | TimeoutError):
            return ModelTimeoutError(f"{self.name}: no answer in time", model=self.name)
        if isinstance(error, ReplyLimitError):
            return BadResponseError(self._message(str(error)), model=self.name, retryable=False)
        if is_connection_lost(error):
            return BadResponseError(f"{self.name}: the connection closed before the reply did", model=self.name)
        if isinstance(error, httpx2.TransportError):
            where = redact_url(self._credentials.base_url)
            return UnreachableError(f"{self.name}: can't reach {where}: {error}", model=self.name)
        return BadResponseError(self._message(f"{type(error).__name__}: {error}"), model=self.name)

    def _api_error(self, error: errors.APIError) -> ModelError:
        details = json.dumps(error.details)
        text = self._message(str(error.message or error.details))
        if error.code == 400 and "API_KEY_INVALID" in details:
            return AuthenticationError(text, model=self.name, status=error.code)
        if error.code == 400 and TOO_LONG.search(text):
            return ContextLengthError(text, model=self.name, status=error.code)
        delay = RETRY_DELAY.search(details)
        wait = parse_seconds(error.response.headers.get("retry-after")) or parse_seconds(delay and delay[1])
        return status_error(text, model=self.name, status=error.code, retry_after=wait)

    def _message(self, text: str) -> str:
        return f"{self.name}: {text}"[:MAX_ERROR_LENGTH]
