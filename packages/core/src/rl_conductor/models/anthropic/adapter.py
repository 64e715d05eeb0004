"""`AnthropicModel`: Anthropic's models, through the vendor's own SDK.

The protocol is in `wire` and `reply`; this module handles keys, connections, deadlines and errors. Features that the
API lacks raise `BadRequestError` before the call: a seed, a grammar, JSON without a schema. `temperature` and `top_p`
are sent although the SDK no longer declares them; models that do not support them reject the call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, ClassVar, TypeAlias

from rl_conductor._internal.sync import PerLoop
from rl_conductor.errors import (
    BadResponseError,
    ConfigError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    UnreachableError,
)
from rl_conductor.models.anthropic.reply import Reply
from rl_conductor.models.anthropic.wire import Body, body_of
from rl_conductor.models.base import (
    DEFAULT_TIMEOUT,
    MALFORMED_REPLY_ERRORS,
    MAX_ERROR_LENGTH,
    Capabilities,
    checked,
    is_connection_lost,
    parse_retry_after,
    require,
    status_error,
    within,
)
from rl_conductor.models.connections import connection_settings
from rl_conductor.models.endpoints import Credentials, Endpoint, redact_url
from rl_conductor.models.redaction import redacting
from rl_conductor.models.reply_limit import ACCEPTED_ENCODINGS, ReplyLimitError, event_hooks
from rl_conductor.types import Completion, Delta, Price, Request

try:
    import anthropic
    import httpx2
except ImportError as missing:
    raise ConfigError("Anthropic's models need its SDK: pip install 'rl-conductor[anthropic]'") from missing

SDKClient: TypeAlias = anthropic.AsyncAnthropic | anthropic.AsyncAnthropicBedrock | anthropic.AsyncAnthropicVertex

CAPABILITIES = Capabilities(
    tools=True, images=True, files=True, json_schema=True, array_bounds=True, reasoning_start="outside"
)

PATH = "/v1/messages"

STATUS_BY_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Status by error type, for errors inside a stream, whose HTTP status is 200."""

TOO_LONG = ("prompt is too long", "exceed context limit", "context window", "Input is too long")


class AnthropicModel:
    """A model of Anthropic, or of a server that implements the Messages API."""

    endpoint: ClassVar = Endpoint(
        provider="anthropic",
        base_url="https://api.anthropic.com",
        address_variable="ANTHROPIC_BASE_URL",
        key_variables=("ANTHROPIC_API_KEY",),
        hosts=("api.anthropic.com",),
    )
    status_by_type: ClassVar = STATUS_BY_TYPE

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
            api_key: the key, sent to `base_url`. By default `ANTHROPIC_API_KEY`, which is sent only to the vendor or
                to `ANTHROPIC_BASE_URL`.
            base_url: the URL of the API; by default `ANTHROPIC_BASE_URL`, else the vendor's own.
            price: by default the vendor's listed price; unknown for other servers.
            capabilities: the features of the model.

        Raises:
            ConfigError: the key is missing or the URL is invalid.
        """
        self.name = f"{self.endpoint.provider}:{name}"
        self.capabilities = capabilities
        self._credentials = self._resolve_credentials(name, base_url, api_key)
        self.price = price or self.endpoint.price_of(name, self._credentials)
        self._clients = PerLoop(self._client)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name.partition(':')[2]!r})"

    def _resolve_credentials(self, name: str, base_url: str | None, api_key: str | None) -> Credentials:
        return self.endpoint.credentials(name, base_url=base_url, api_key=api_key)

    async def complete(self, request: Request) -> Completion:
        """Returns the complete reply."""
        require(self, request)
        body, options, reply = body_of(request, model=self.name), _options(request), Reply(self.name)
        with redacting(*self._credentials.secrets), self._credentials.named_in_errors(), self._translate_errors():
            async with asyncio.timeout(request.timeout):
                reply.add_message(await self._post(body, options))
        return checked(reply.completion(self.price), request)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply as deltas."""
        require(self, request)
        body, options, reply = body_of(request, model=self.name), _options(request), Reply(self.name)
        with redacting(*self._credentials.secrets), self._credentials.named_in_errors(), self._translate_errors():
            async with aclosing(within(request.timeout, self._events(body, options))) as events:
                async for event in events:  # reads to the end, so that the connection can be reused
                    delta = reply.add(event)
                    if delta.text or delta.reasoning:
                        yield delta
        yield Delta(completion=checked(reply.completion(self.price), request))

    async def aclose(self) -> None:
        """Closes the connections of the running event loop."""
        client = self._clients.drop()
        if client is not None:
            await client.close()

    def _client(self) -> SDKClient:
        # The SDK's default client closes itself when garbage-collected, on whichever event loop is running.
        connections = anthropic.DefaultAsyncHttpxClient(
            follow_redirects=False,
            headers=ACCEPTED_ENCODINGS,
            event_hooks=event_hooks(),
            **connection_settings(httpx2),
        )
        return self._sdk_client(max_retries=0, http_client=connections)

    def _sdk_client(self, **settings: Any) -> SDKClient:
        """Creates the SDK's client with the model's credentials."""
        return anthropic.AsyncAnthropic(
            api_key=self._credentials.key
            or "none",  # without a key the SDK would look for other credentials and send those
            base_url=self._credentials.base_url,
            **settings,
        )

    async def _post(self, body: Body, options: anthropic.RequestOptions) -> object:
        """Sends the request through the SDK and returns the JSON of its response.

        Without `messages.create`, which copies the request and builds an object for each part of the reply.
        """
        response = await self._clients.get().post(PATH, cast_to=httpx2.Response, body=body, options=options)
        return json.loads(response.content)

    async def _events(self, body: Body, options: anthropic.RequestOptions) -> AsyncGenerator[object, None]:
        events: anthropic.AsyncStream[object] = await self._clients.get().post(
            PATH,
            cast_to=object,
            body={**body, "stream": True},
            options=options,
            stream=True,
            stream_cls=anthropic.AsyncStream[object],
        )
        async with events:
            async for event in events:
                yield event

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (
            anthropic.AnthropicError,
            httpx2.HTTPError,
            TimeoutError,
            ReplyLimitError,
            *MALFORMED_REPLY_ERRORS,
        ) as error:
            raise self._error(error) from None  # the SDK's own error may quote the key

    def _error(self, error: Exception) -> ModelError:
        text = f"{self.name}: {_error_message(error)}"[:MAX_ERROR_LENGTH]
        if isinstance(error, anthropic.APIStatusError):
            return self._status_error(error, text)
        if isinstance(error, anthropic.APITimeoutError | httpx2.TimeoutException | TimeoutError):
            return ModelTimeoutError(f"{self.name}: no answer in time", model=self.name)
        cause = error.__cause__ or error
        if isinstance(cause, ReplyLimitError):
            return BadResponseError(f"{self.name}: {cause}", model=self.name, retryable=False)
        if is_connection_lost(cause):
            return BadResponseError(f"{self.name}: the connection closed before the reply did", model=self.name)
        if isinstance(error, anthropic.APIConnectionError):
            where = redact_url(self._credentials.base_url)
            return UnreachableError(f"{self.name}: can't reach {where}: {cause}", model=self.name)
        return BadResponseError(text, model=self.name)

    def _status_error(self, error: anthropic.APIStatusError, text: str) -> ModelError:
        status = error.status_code if error.status_code >= 300 else self.status_by_type.get(str(error.type), 500)
        if status == 400 and any(phrase in text for phrase in TOO_LONG):
            return ContextLengthError(text, model=self.name, status=status)
        wait = parse_retry_after(error.response.headers.get("retry-after"))
        return status_error(text, model=self.name, status=status, retry_after=wait)


def _options(request: Request) -> anthropic.RequestOptions:
    return {"timeout": request.timeout or DEFAULT_TIMEOUT}


def _error_message(error: Exception) -> str:
    if isinstance(error, anthropic.APIStatusError):
        return str(error.api_message or error.message)
    return f"{type(error).__name__}: {error}"
