"""`GoogleModel`: Google's Gemini models, through the vendor's own SDK (google-genai) and its Gemini API.

The protocol itself is in `generate_content`; here are keys, connections, deadlines and errors. What the API has
no word for raises `BadRequestError` before the call: a grammar, tools of which only one may be called.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from urllib.parse import urlsplit

from rl_conductor.errors import (
    AuthenticationError,
    BadResponseError,
    ConfigError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
)
from rl_conductor.models.base import (
    Capabilities,
    checked,
    hiding,
    require,
    seconds,
    status_error,
    within,
)
from rl_conductor.prices import price_of
from rl_conductor.sync import PerLoop
from rl_conductor.types import Completion, Delta, Price, Request

try:
    import httpx2
    from google import genai
    from google.genai import errors
    from google.genai import types as wire

    from rl_conductor.models.generate_content import Reply, config_of, contents_of
except ImportError as missing:
    raise ConfigError("Google's models need its SDK: pip install 'rl-conductor[google]'") from missing

HOST = "generativelanguage.googleapis.com"

CAPABILITIES = Capabilities(tools=True, images=True, files=True, json_schema=True)

TOO_LONG = re.compile(r"token count.*exceeds|exceeds.*number of tokens", re.IGNORECASE)

RETRY_DELAY = re.compile(r'"retryDelay": "([^"]*)"')

MALFORMED = (ValueError, TypeError, LookupError, AttributeError)
"""What the SDK trips over when a reply is not what the protocol promises."""

BROKEN_OFF = (httpx2.ReadError, httpx2.RemoteProtocolError)

LONGEST_ERROR = 1000
"""Characters of a vendor's message that are worth quoting."""


_ANSWERING: ContextVar[httpx2.Response | None] = ContextVar("_ANSWERING", default=None)
"""The response to the latest call of this task, for the SDK leaves it open when a stream is left early."""


async def _remember(response: httpx2.Response) -> None:
    _ANSWERING.set(response)


class GoogleModel:
    """One of Google's models, or one behind a server that speaks its Gemini API."""

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
            api_key: the key; else the environment's `GEMINI_API_KEY` or `GOOGLE_API_KEY`, never sent to another host.
            base_url: where another server is that speaks the Gemini API; else the vendor's.
            price: looked up for the vendor's own service, else unknown.
            capabilities: what the model can take.

        Raises:
            ConfigError: the key is missing.
        """
        at_home = base_url is None or urlsplit(base_url).hostname == HOST
        found = os.environ.get("GEMINI_API_KEY") or os.environ.get("GOOGLE_API_KEY")
        key = api_key or (found if at_home else "none")
        if not key:
            raise ConfigError(
                f"google:{name} needs a key: set GEMINI_API_KEY or pass api_key=..., "
                "or pass base_url=... for a server that needs none"
            )
        self.name = f"google:{name}"
        self.capabilities = capabilities
        self.price = price or (price_of("google", name) if at_home else None)
        self._model = name
        self._key = key
        self._base_url = base_url
        self._host = urlsplit(base_url).netloc.rpartition("@")[2] if base_url else HOST
        # Of its own accord the SDK takes aiohttp where that is installed, with other errors and retries of its own.
        self._connections = PerLoop(
            lambda: httpx2.AsyncClient(follow_redirects=True, event_hooks={"response": [_remember]})
        )
        self._clients = PerLoop(self._client)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r})"

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        require(self, request)
        contents, config = contents_of(request, model=self.name), config_of(request, model=self.name)
        reply = Reply(request, model=self.name)
        with hiding(self._key), self._translated():
            async with asyncio.timeout(request.timeout):
                models = self._clients.get().aio.models
                reply.add(await models.generate_content(model=self._model, contents=contents, config=config))
            return checked(reply.completion(self.price))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply as it is made."""
        require(self, request)
        reply = Reply(request, model=self.name)
        chunks = self._chunks(contents_of(request, model=self.name), config_of(request, model=self.name))
        with hiding(self._key), self._translated():
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
            base_url=self._base_url,
            httpx_async_client=self._connections.get(),
            retry_options=wire.HttpRetryOptions(attempts=1),
        )
        return genai.Client(vertexai=False, api_key=self._key, http_options=options)

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
        if isinstance(problem, BROKEN_OFF):
            return BadResponseError(f"{self.name}: the connection closed before the reply did", model=self.name)
        if isinstance(problem, httpx2.TransportError):
            return ModelError(f"{self.name}: can't reach {self._host}: {problem}", model=self.name, retryable=True)
        return BadResponseError(self._quoted(f"{type(problem).__name__}: {problem}"), model=self.name)

    def _refusal(self, problem: errors.APIError) -> ModelError:
        details = json.dumps(problem.details)
        text = self._quoted(str(problem.message or problem.details))
        if problem.code == 400 and "API_KEY_INVALID" in details:
            return AuthenticationError(text, model=self.name, status=problem.code)
        if problem.code == 400 and TOO_LONG.search(text):
            return ContextLengthError(text, model=self.name, status=problem.code)
        said = RETRY_DELAY.search(details)
        wait = seconds(problem.response.headers.get("retry-after")) or seconds(said and said[1])
        return status_error(text, model=self.name, status=problem.code, retry_after=wait)

    def _quoted(self, text: str) -> str:
        return f"{self.name}: {text}"[:LONGEST_ERROR]
