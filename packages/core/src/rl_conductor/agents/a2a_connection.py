"""`A2AConnection`: requests to an A2A agent on one event loop, through the protocol's own SDK."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, aclosing, contextmanager, suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit
from uuid import uuid4

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.card_resolver import parse_agent_card
from a2a.client.errors import A2AClientError, A2AClientTimeoutError
from a2a.types.a2a_pb2 import AgentCard, CancelTaskRequest, GetTaskRequest, Message, Part, Role, SendMessageRequest
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH, TransportProtocol
from a2a.utils.errors import A2AError, InternalError
from google.protobuf.json_format import ParseError

from rl_conductor.agents.a2a_reply import A2AReply
from rl_conductor.errors import BadRequestError, BadResponseError, ModelError, ModelTimeoutError
from rl_conductor.models.base import DEFAULT_TIMEOUT
from rl_conductor.models.http.connections import tls_context
from rl_conductor.models.http.model import connection_error
from rl_conductor.models.http.reply_limit import ACCEPTED_ENCODINGS, ReplyLimitError, event_hooks
from rl_conductor.models.vendor_errors import MALFORMED_REPLY_ERRORS, MAX_ERROR_LENGTH, parse_retry_after, status_error
from rl_conductor.types import FilePart, ImagePart, Request

if TYPE_CHECKING:
    from rl_conductor.agents.a2a_agent import A2AAgent

CARD_TIMEOUT = 5.0
"""Seconds for reading an agent's card."""
MAX_CARD_BYTES = 2**20
CONNECT_TIMEOUT = 30.0
CANCEL_TIMEOUT = 2.0
"""Seconds for telling an agent that its task is cancelled."""
POLL_SECONDS = 0.5
"""Pause between two looks at a task of an agent that does not stream."""
QUIET_ERRORS = (A2AError, httpx.HTTPError, TimeoutError, ReplyLimitError, ModelError, *MALFORMED_REPLY_ERRORS)
"""Errors of leaving a task early, which must not take the place of the reason for it."""
BINDINGS = [TransportProtocol.JSONRPC, TransportProtocol.HTTP_JSON]
"""The transports that need no further library."""


def read_card(agent: A2AAgent) -> dict[str, Any]:
    """Reads the agent's card.

    Raises:
        ModelError: the agent can't be reached, or the reply is not a card.
    """
    with _translate_errors(agent.name):
        with ThreadPoolExecutor(1) as thread:  # this one may have an event loop that is running
            card = json.loads(thread.submit(asyncio.run, _fetch_card(agent)).result())
        parse_agent_card(deepcopy(card))  # rejects what is not a card
    result: dict[str, Any] = card
    return result


async def _fetch_card(agent: A2AAgent) -> bytes:
    url = agent.url if agent.url.endswith(".json") else agent.url + AGENT_CARD_WELL_KNOWN_PATH
    http = httpx.AsyncClient(headers=_headers(agent), timeout=CARD_TIMEOUT, verify=tls_context(httpx))
    # The timeouts of httpx apply to each piece, so that an agent that sends its card byte by byte would hold them.
    async with asyncio.timeout(CARD_TIMEOUT), http, http.stream("GET", url) as response:
        if response.status_code != httpx.codes.OK:
            message = f"{agent.name}: HTTP status {response.status_code} for its card"
            raise status_error(message, model=agent.name, status=response.status_code)
        content = b""
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > MAX_CARD_BYTES:
                raise ReplyLimitError(f"the card is larger than {MAX_CARD_BYTES:,} bytes")
        return content


class A2AConnection:
    """The HTTP connections to one agent."""

    def __init__(self, agent: A2AAgent) -> None:
        self._agent = agent
        self._http = httpx.AsyncClient(
            headers={**ACCEPTED_ENCODINGS, **_headers(agent)},
            timeout=httpx.Timeout(DEFAULT_TIMEOUT, connect=CONNECT_TIMEOUT),
            event_hooks=event_hooks(),
            verify=tls_context(httpx),
        )

    def new_reply(self) -> A2AReply:
        """Returns the reply to a request that is not sent yet."""
        return A2AReply(self._agent.name)

    async def run_task(self, card: dict[str, Any], request: Request, reply: A2AReply) -> AsyncGenerator[str, None]:
        """Sends `request`, adds the events to `reply`, and yields its text; cancels the task if it is left early."""
        client = self._client(card)
        events: AsyncGenerator[Any, None] = client.send_message(SendMessageRequest(message=_message(request)))  # type: ignore[assignment]
        # In a task of its own, because only the first event names the task that a cancellation has to cancel.
        first = asyncio.ensure_future(anext(events, None))
        try:
            await asyncio.wait([first])
            async with aclosing(events):
                event = first.result()
                while event is not None:
                    if text := reply.add(event):
                        yield text
                    if reply.is_over:
                        return
                    event = await anext(events, None)
            while not reply.is_over:
                if not reply.task_id:
                    raise BadResponseError(f"{self._agent.name}: it sent no task and no reply", model=self._agent.name)
                await asyncio.sleep(POLL_SECONDS)
                if text := reply.add_task(await client.get_task(GetTaskRequest(id=reply.task_id))):
                    yield text
        finally:
            with suppress(*QUIET_ERRORS):
                await self._leave(client, first, reply)

    async def _leave(self, client: Client, first: asyncio.Future[Any], reply: A2AReply) -> None:
        """Cancels a task that is not over, if need be after its first event; an agent that does not answer is left."""
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                if not reply.has_started:
                    event = await first
                    if event is not None:
                        reply.add(event)
                if reply.task_id and not reply.is_over:
                    await client.cancel_task(CancelTaskRequest(id=reply.task_id))
        finally:
            first.cancel()

    async def aclose(self) -> None:
        await self._http.aclose()

    def translate_errors(self) -> AbstractContextManager[None]:
        """Translates errors of the SDK and of HTTP to ours."""
        return _translate_errors(self._agent.name)

    def _client(self, content: dict[str, Any]) -> Client:
        card = parse_agent_card(deepcopy(content))
        self._keep_trusted_interfaces(card)
        config = ClientConfig(httpx_client=self._http, supported_protocol_bindings=list(BINDINGS))
        return ClientFactory(config).create(card)

    def _keep_trusted_interfaces(self, card: AgentCard) -> None:
        """Removes interfaces that must not get the prompt and the credentials.

        They are at hosts that the user did not name, or unencrypted although the agent's own URL is `https`.
        """
        usable = [interface for interface in card.supported_interfaces if interface.protocol_binding in BINDINGS]
        trusted = [interface for interface in usable if self._is_trusted(urlsplit(interface.url))]
        if not trusted:
            reason = self._distrust([urlsplit(interface.url) for interface in usable])
            raise BadRequestError(f"{self._agent.name}: {reason}"[:MAX_ERROR_LENGTH], model=self._agent.name)
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(trusted)

    def _is_trusted(self, address: SplitResult) -> bool:
        is_downgrade = self._agent.is_encrypted and address.scheme != "https"
        return address.netloc in self._agent.hosts and not is_downgrade

    def _distrust(self, addresses: list[SplitResult]) -> str:
        """Says why none of the addresses in a card is trusted."""
        if not addresses:
            return "its card names no address for JSON-RPC or HTTP+JSON"
        hosts = sorted({address.netloc for address in addresses} - self._agent.hosts)
        if hosts:
            return f"its card names other hosts: {', '.join(hosts)}; if you trust them, pass hosts={hosts}"
        return "its own URL is https, but its card names only unencrypted addresses; ask its operator for an https one"


def _headers(agent: A2AAgent) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in agent.headers.items()}


def _message(request: Request) -> Message:
    """Converts a request to one message; earlier turns become a part of its text."""
    messages = [message for message in request.messages if message.text]
    texts = [message.text for message in messages]
    if len(messages) > 1:
        texts = [f"{message.role.capitalize()}: {message.text}" for message in messages]
    parts = [Part(text="\n\n".join(texts))]
    for message in request.messages:
        parts += [_attachment(part) for part in message.content if isinstance(part, ImagePart | FilePart)]
    return Message(role=Role.ROLE_USER, message_id=str(uuid4()), parts=parts)


def _attachment(part: ImagePart | FilePart) -> Part:
    name = part.name if isinstance(part, FilePart) else ""
    if isinstance(part, ImagePart) and part.url:
        return Part(url=part.url, media_type=part.media_type)
    return Part(raw=b64decode(part.data or ""), media_type=part.media_type, filename=name)


@contextmanager
def _translate_errors(model: str) -> Iterator[None]:
    try:
        yield
    except (A2AError, httpx.HTTPError, TimeoutError, ReplyLimitError, ParseError, *MALFORMED_REPLY_ERRORS) as error:
        raise _error(error, model) from None  # the SDK's own error may quote the key


def _error(error: Exception, model: str) -> ModelError:
    if isinstance(error, A2AClientTimeoutError | httpx.TimeoutException | TimeoutError):
        return ModelTimeoutError(f"{model}: no answer in time", model=model)
    cause = error.__cause__ if isinstance(error, A2AClientError) and error.__cause__ else error
    if isinstance(cause, httpx.HTTPError | ReplyLimitError):
        return _http_error(cause, model)
    text = f"{model}: {error}"[:MAX_ERROR_LENGTH]
    if isinstance(error, InternalError):
        return ModelError(text, model=model, retryable=True)
    if isinstance(error, A2AError) and not isinstance(error, A2AClientError):
        return BadRequestError(text, model=model)
    return BadResponseError(text, model=model)


def _http_error(error: httpx.HTTPError | ReplyLimitError, model: str) -> ModelError:
    if isinstance(error, httpx.HTTPStatusError):
        status, headers = error.response.status_code, error.response.headers
        wait = parse_retry_after(headers.get("retry-after"))
        return status_error(f"{model}: HTTP status {status}", model=model, status=status, retry_after=wait)
    return connection_error(error, model=model, address=model.partition(":")[2])
