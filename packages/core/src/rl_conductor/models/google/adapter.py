"""`GoogleModel`: Google's Gemini models, through the vendor's own SDK (google-genai) and its Gemini API.

The protocol itself is in `generate_content`; here are keys, connections, deadlines and errors. What the API has
no word for raises `BadRequestError` before the call: a grammar, tools of which only one may be called.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import ClassVar

from rl_conductor._internal.formatting import seconds_in
from rl_conductor._internal.sync import PerLoop
from rl_conductor.errors import (
    AuthenticationError,
    BadResponseError,
    ConfigError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
)
from rl_conductor.models.base import (
    LONGEST_ERROR,
    MALFORMED,
    Capabilities,
    broke_off,
    checked,
    require,
    status_error,
    within,
)
from rl_conductor.models.endpoints import Service, shown_address
from rl_conductor.models.redaction import hiding
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

_ANSWERING: ContextVar[httpx2.Response | None] = ContextVar("_ANSWERING", default=None)
"""The response to the latest call of this task, for the SDK leaves it open when a stream is left early."""


async def _remember(response: httpx2.Response) -> None:
    _ANSWERING.set(response)


def _connections() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(event_hooks={"response": [_remember]})


class GoogleModel:
    """One of Google's models, or one behind a server that speaks its Gemini API."""

    service: ClassVar = Service(
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
        """Connect to nothing yet.

        Args:
            name: the model as Google names it.
            api_key: the key, sent to `base_url`; else `GEMINI_API_KEY` or `GOOGLE_API_KEY`, which go to the vendor
                alone, or to the server that `GOOGLE_GEMINI_BASE_URL` names.
            base_url: where the service is; else what `GOOGLE_GEMINI_BASE_URL` says, else the vendor's own.
            price: looked up for the vendor's own service, else unknown.
            capabilities: what the model can take.

        Raises:
            ConfigError: no usable key or address was found.
        """
        self.name = f"google:{name}"
        self.capabilities = capabilities
        self._model = name
        self._access = self.service.access(name, base_url=base_url, api_key=api_key)
        self.price = price or self.service.price_of(name, self._access)
        # Of its own accord the SDK takes aiohttp where that is installed, with other errors and retries of its own.
        self._connections = PerLoop(_connections)
        self._clients = PerLoop(self._client)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r})"

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        require(self, request)
        contents, config = contents_of(request, model=self.name), config_of(request, model=self.name)
        reply = Reply(request, model=self.name)
        with hiding(*self._access.secrets), self._translated():
            async with asyncio.timeout(request.timeout):
                models = self._clients.get().aio.models
                reply.add(await models.generate_content(model=self._model, contents=contents, config=config))
            return checked(reply.completion(self.price))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply as it is made."""
        require(self, request)
        reply = Reply(request, model=self.name)
        chunks = self._chunks(contents_of(request, model=self.name), config_of(request, model=self.name))
        with hiding(*self._access.secrets), self._translated():
            async with aclosing(within(request.timeout, chunks)) as arriving:
                async for chunk in arriving:
                    delta = reply.add(chunk)
                    if delta.text or delta.reasoning:
                        yield delta
            yield Delta(completion=checked(reply.completion(self.price)))

    async def aclose(self) -> None:
        """Close the running event loop's connections; the next call opens new ones."""
        self._clients.drop()
        connections = self._connections.drop()
        if connections is not None:
            await connections.aclose()

    def _client(self) -> genai.Client:
        options = wire.HttpOptions(
            base_url=self._access.base_url,
            httpx_async_client=self._connections.get(),
            retry_options=wire.HttpRetryOptions(attempts=1),
        )
        key = self._access.key or "none"  # without one the SDK would look for others and send those
        return genai.Client(vertexai=False, api_key=key, http_options=options)

    async def _chunks(
        self, contents: list[wire.Content], config: wire.GenerateContentConfig
    ) -> AsyncGenerator[wire.GenerateContentResponse, None]:
        models = self._clients.get().aio.models
        stream = await models.generate_content_stream(model=self._model, contents=contents, config=config)
        response = None
        try:
            async for chunk in stream:
                response = response or _ANSWERING.get()
                yield chunk
        finally:
            if response is not None:
                await response.aclose()

    # --------------------------------------------------------------------------------------- errors

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (errors.APIError, httpx2.HTTPError, TimeoutError, *MALFORMED) as problem:
            raise self._error(problem) from None  # the SDK's own error may quote the key

    def _error(self, problem: Exception) -> ModelError:
        if isinstance(problem, errors.APIError):
            return self._refusal(problem)
        if isinstance(problem, httpx2.TimeoutException | TimeoutError):
            return ModelTimeoutError(f"{self.name}: no answer in time", model=self.name)
        if broke_off(problem):
            return BadResponseError(f"{self.name}: the connection closed before the reply did", model=self.name)
        if isinstance(problem, httpx2.TransportError):
            where = shown_address(self._access.base_url)
            return ModelError(f"{self.name}: can't reach {where}: {problem}", model=self.name, retryable=True)
        return BadResponseError(self._quoted(f"{type(problem).__name__}: {problem}"), model=self.name)

    def _refusal(self, problem: errors.APIError) -> ModelError:
        details = json.dumps(problem.details)
        text = self._quoted(str(problem.message or problem.details))
        if problem.code == 400 and "API_KEY_INVALID" in details:
            return AuthenticationError(text, model=self.name, status=problem.code)
        if problem.code == 400 and TOO_LONG.search(text):
            return ContextLengthError(text, model=self.name, status=problem.code)
        said = RETRY_DELAY.search(details)
        wait = seconds_in(problem.response.headers.get("retry-after")) or seconds_in(said and said[1])
        return status_error(text, model=self.name, status=problem.code, retry_after=wait)

    def _quoted(self, text: str) -> str:
        return f"{self.name}: {text}"[:LONGEST_ERROR]
