"""`AnthropicModel`: Anthropic's models, through the vendor's own SDK.

The protocol is in `wire` and `reply`; this module handles keys, connections, deadlines and errors. Features that the
API lacks raise `BadRequestError` before the call: a seed, a grammar, JSON without a schema. `temperature` and `top_p`
are sent although the SDK no longer declares them; models that do not support them reject the call.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, ClassVar, TypeAlias

from rl_conductor.errors import ConfigError, ContextLengthError, ModelError
from rl_conductor.models.anthropic.reply import Reply
from rl_conductor.models.anthropic.wire import Body, body_of
from rl_conductor.models.base import DEFAULT_TIMEOUT, Capabilities
from rl_conductor.models.endpoints import ENDPOINTS
from rl_conductor.models.http.connections import connection_settings
from rl_conductor.models.http.model import HTTPModel
from rl_conductor.models.vendor_errors import MAX_ERROR_LENGTH, parse_retry_after, quote_body, status_error
from rl_conductor.types import Price, Request

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


class AnthropicModel(HTTPModel):
    """A model of Anthropic, or of a server that implements the Messages API."""

    endpoint: ClassVar = ENDPOINTS["anthropic"]
    status_by_type: ClassVar = STATUS_BY_TYPE
    library_errors: ClassVar = (anthropic.AnthropicError, httpx2.HTTPError)
    timeouts: ClassVar = (anthropic.APITimeoutError, httpx2.TimeoutException)
    connection_errors: ClassVar = (anthropic.APIConnectionError, httpx2.RequestError)

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
        super().__init__(name, base_url=base_url, api_key=api_key, price=price)
        self.capabilities = capabilities

    def _client(self) -> SDKClient:
        # The SDK's default client closes itself when garbage-collected, on whichever event loop is running.
        connections = anthropic.DefaultAsyncHttpxClient(**connection_settings(httpx2))
        return self._sdk_client(max_retries=0, http_client=connections)

    def _sdk_client(self, **settings: Any) -> SDKClient:
        """Creates the SDK's client with the model's credentials."""
        return anthropic.AsyncAnthropic(
            base_url=self._credentials.base_url,
            api_key=self._credentials.key or "none",  # without a key the SDK would look for others and send those
            **settings,
        )

    def _reply(self, _request: Request) -> Reply:
        return Reply(self.name)

    def _body(self, request: Request) -> Body:
        return body_of(request, model=self.name)

    def _add_whole(self, reply: Reply, response: object) -> None:
        reply.add_message(response)

    async def _post(self, body: Body, request: Request) -> object:
        """Sends the request through the SDK and returns the JSON of its response.

        Without `messages.create`, which copies the request and builds an object for each part of the reply.
        """
        response = await self._clients.get().post(PATH, cast_to=httpx2.Response, body=body, options=_options(request))
        self._reject_web_page(response)
        return _accepted(json.loads(response.content), response)

    async def _events(self, body: Body, request: Request) -> AsyncGenerator[object, None]:
        events: anthropic.AsyncStream[object] = await self._clients.get().post(
            PATH,
            cast_to=object,
            body={**body, "stream": True},
            options=_options(request),
            stream=True,
            stream_cls=anthropic.AsyncStream[object],
        )
        async with events:
            self._reject_web_page(events.response)
            if (complete := await self._whole_json(events.response)) is not None:
                yield _accepted(complete, events.response)
                return
            async for event in events:
                yield event

    def _error(self, error: Exception) -> ModelError:
        return self._status_error(error) if isinstance(error, anthropic.APIStatusError) else super()._error(error)

    def _status_error(self, error: anthropic.APIStatusError) -> ModelError:
        status = error.status_code if error.status_code >= 300 else self.status_by_type.get(str(error.type), 500)
        text = f"{self.name}: {quote_body(str(error.api_message or error.message), status)}"[:MAX_ERROR_LENGTH]
        if status == 400 and any(phrase in text for phrase in TOO_LONG):
            return ContextLengthError(text, model=self.name, status=status)
        wait = parse_retry_after(error.response.headers.get("retry-after"))
        is_overload = self._is_overload(error)
        return status_error(text, model=self.name, status=status, retry_after=wait, is_overload=is_overload)

    def _is_overload(self, error: anthropic.APIStatusError) -> bool:
        """Whether the API itself says that it is overloaded."""
        return error.type == "overloaded_error"


def _accepted(body: object, response: httpx2.Response) -> object:
    """Returns the body. Raises `APIStatusError` if it is an error, which gateways may send under a status of 200."""
    if isinstance(body, dict) and body.get("type") == "error":
        raise anthropic.APIStatusError(str(body), response=response, body=body)
    return body


def _options(request: Request) -> anthropic.RequestOptions:
    return {"timeout": request.timeout or DEFAULT_TIMEOUT}
