"""`HTTPModel`, the base of adapters of vendors' HTTP APIs: credentials, connections, deadlines and errors.

A subclass adds the protocol: the body of a request, how it is sent, and the reply that is built from the response.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any, ClassVar, Protocol

from rl_conductor._internal.per_loop import PerLoop
from rl_conductor._internal.streams import until_silent, within
from rl_conductor.errors import BadResponseError, ModelError, ModelTimeoutError, UnreachableError
from rl_conductor.models.base import Capabilities, require
from rl_conductor.models.endpoints import Credentials, Endpoint
from rl_conductor.models.http.reply_limit import ReplyLimitError
from rl_conductor.models.http.request_log import redact_in_logs
from rl_conductor.models.redaction import redacting
from rl_conductor.models.replies.checks import checked
from rl_conductor.models.urls import redact_url
from rl_conductor.models.vendor_errors import MALFORMED_REPLY_ERRORS, MAX_ERROR_LENGTH
from rl_conductor.types import Completion, Delta, Price, Request

OTHER_ERRORS = (TimeoutError, ReplyLimitError, *MALFORMED_REPLY_ERRORS)
"""Errors of reading a reply that come from no vendor's library."""
LOST_CONNECTION = frozenset({"ReadError", "RemoteProtocolError", "DecodingError"})
"""The names of httpx's errors for a connection that is lost during the reply; libraries use httpx or httpx2."""


SILENCE_SECONDS = 2.0
"""Seconds without an event after which a reply that has ended is complete, although the server holds its response open.

Events may follow the finish reason: with the usage, or, from older models of Google, with more of the text.
"""


class VendorReply(Protocol):
    """A reply in the making."""

    has_ended: bool
    """`True` once the reply says why it ended."""

    def add(self, event: Any) -> Delta:
        """Adds an event of a stream and returns its delta. Raises `ModelError`."""

    def completion(self, price: Price | None) -> Completion:
        """Builds the completion. Raises `BadResponseError` if the reply is incomplete."""


class HTTPModel(ABC):
    """A model behind a vendor's HTTP API."""

    name: str
    capabilities: Capabilities
    endpoint: ClassVar[Endpoint]
    library_errors: ClassVar[tuple[type[Exception], ...]]
    """All errors of the vendor's library and of HTTP, which the library does not translate in the midst of a stream."""
    timeouts: ClassVar[tuple[type[Exception], ...]]
    """The errors among them for a reply that is late."""
    connection_errors: ClassVar[tuple[type[Exception], ...]]
    """The errors among them for a connection that can't be made or is lost."""

    def __init__(self, name: str, *, base_url: str | None, api_key: str | None, price: Price | None) -> None:
        self.name = f"{self.endpoint.provider}:{name}"
        self._model = name
        self._credentials = self._resolve_credentials(base_url, api_key)
        self._secrets = self._credentials.secrets
        redact_in_logs(self._credentials.base_url)
        self.price = price or self.endpoint.price_of(name, self._credentials)
        self._clients = PerLoop(self._client)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r})"

    @property
    def reply_options(self) -> dict[str, object]:
        """The options besides the name that affect replies, without secrets, for caches: an address of its own."""
        address = redact_url(self._credentials.base_url)
        return {} if address == self.endpoint.base_url else {"base_url": address}

    def _resolve_credentials(self, base_url: str | None, api_key: str | None) -> Credentials:
        return self.endpoint.credentials(self._model, base_url=base_url, api_key=api_key)

    async def complete(self, request: Request) -> Completion:
        """Returns the complete reply."""
        require(self, request)
        body, reply = self._body(request), self._reply(request)
        with self._explained_errors():
            async with asyncio.timeout(request.timeout):
                self._add_whole(reply, await self._post(body, request))
            return checked(reply.completion(self.price), request)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply as deltas; those of other events than text and reasoning are empty."""
        require(self, request)
        body, reply = self._body(request), self._reply(request)
        with self._explained_errors():
            async with aclosing(within(request.timeout, self._events(body, request))) as events:
                async for event in events:
                    yield reply.add(event)
                    if reply.has_ended:
                        break
                with suppress(TimeoutError, *self.timeouts, *self.connection_errors):
                    # Reads to the end, for what follows, and so that the connection can be reused.
                    async for event in until_silent(SILENCE_SECONDS, events):
                        yield reply.add(event)
            yield Delta(completion=checked(reply.completion(self.price), request))

    async def aclose(self) -> None:
        """Closes the connections of the running event loop; the next call opens new ones."""
        client = self._clients.drop()
        if client is not None:
            await self._close(client)

    # ------------------------------------------------------------------------------------- protocol

    @abstractmethod
    def _client(self) -> Any:
        """Creates the client of an event loop."""

    async def _close(self, client: Any) -> None:
        await client.close()

    @abstractmethod
    def _body(self, request: Request) -> Any:
        """Converts a request. Raises `BadRequestError` for features that the API lacks."""

    @abstractmethod
    async def _post(self, body: Any, request: Request) -> object:
        """Sends a request and returns the JSON of its response."""

    @abstractmethod
    def _events(self, body: Any, request: Request) -> AsyncGenerator[object, None]:
        """Sends a request and yields the JSON of each event."""

    @abstractmethod
    def _reply(self, request: Request) -> VendorReply:
        """Begins the reply to a request. Calls that come without an id get one when the reply is checked."""

    def _add_whole(self, reply: Any, response: object) -> None:
        """Adds a complete response, which most protocols write like an event."""
        reply.add(response)

    async def _whole_json(self, response: Any) -> object | None:
        """Reads the complete reply or the error that a gateway may send instead of a stream; `None` for a stream."""
        if response.headers.get("content-type", "").startswith("application/json"):
            content = await response.aread()
            with suppress(ValueError):  # a stream with the wrong content type
                parsed: object = json.loads(content)
                return parsed
        return None

    # --------------------------------------------------------------------------------------- errors

    @contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """Translates errors to ours, without secrets, and names the variable of a key that was rejected."""
        with redacting(*self._secrets), self._credentials.named_in_errors(), self._translate_errors():
            yield

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translates errors to ours, without chaining them: their text or request may contain the key."""
        kinds: tuple[type[Exception], ...] = (*self.library_errors, *OTHER_ERRORS)
        try:
            yield
        except kinds as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> ModelError:
        """Translates an error; subclasses translate those that the API reports."""
        if isinstance(error, (TimeoutError, *self.timeouts)):
            return ModelTimeoutError(f"{self.name}: no answer in time", model=self.name)
        if isinstance(error, (ReplyLimitError, *self.connection_errors)):
            return connection_error(error, model=self.name, address=redact_url(self._credentials.base_url))
        is_json_error = isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError)
        reason = f"the reply from {self._address()} is not JSON" if is_json_error else type(error).__name__
        return BadResponseError(f"{self.name}: {reason}: {error}"[:MAX_ERROR_LENGTH], model=self.name)

    def _reject_web_page(self, response: Any) -> None:
        """Raises `BadResponseError` if the response is a web page, as of a proxy that wants a login."""
        if response.headers.get("content-type", "").startswith("text/html"):
            message = f"{self.name}: a web page came instead of a reply from {self._address()}"
            raise BadResponseError(message, model=self.name)

    def _address(self) -> str:
        """Returns the address, for errors about replies from there."""
        return redact_url(self._credentials.base_url)


def connection_error(error: Exception, *, model: str, address: str) -> ModelError:
    """Builds the error for a reply that is too large, breaks off, or can't be asked for."""
    cause = error.__cause__ or error  # vendors' libraries wrap the errors of HTTP
    if isinstance(cause, ReplyLimitError):
        return BadResponseError(f"{model}: {cause}"[:MAX_ERROR_LENGTH], model=model, retryable=False)
    if not LOST_CONNECTION.isdisjoint((type(error).__name__, type(cause).__name__)):
        return BadResponseError(f"{model}: the connection closed before the reply did", model=model)
    return UnreachableError(f"{model}: can't reach {address}: {cause}"[:MAX_ERROR_LENGTH], model=model)
