"""`A2AAgent`: a remote agent that speaks the Agent2Agent protocol, as a worker.

Each request is a task of its own for the agent. The agent's card, its replies and the address in its card come from
another machine, so they are untrusted: their size is bounded, and requests stay at the hosts that the user named.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from rl_conductor._internal.per_loop import PerLoop
from rl_conductor._internal.streams import within
from rl_conductor._internal.version import is_importable
from rl_conductor.errors import ConfigError, ModelError
from rl_conductor.models.base import Capabilities, StreamingModel, require
from rl_conductor.models.endpoints import usable_key
from rl_conductor.models.http.request_log import redact_in_logs
from rl_conductor.models.redaction import redacting
from rl_conductor.models.replies.checks import checked
from rl_conductor.models.urls import is_http_url, redact_url, url_secrets
from rl_conductor.text.truncation import truncate_middle
from rl_conductor.types import Delta, Price, Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rl_conductor.agents.a2a_connection import A2AConnection
    from rl_conductor.agents.a2a_reply import A2AReply

MAX_DESCRIPTION_CHARS = 600
"""Maximum length of a description from an agent's card; longer ones are cut in the middle."""
CONNECTION_MODULE = "rl_conductor.agents.a2a_connection"
"""Imports the SDK."""

_log = logging.getLogger("rl_conductor")


class A2AAgent(StreamingModel):
    """A remote agent, reached by the address of its card."""

    def __init__(
        self,
        url: str,
        *,
        description: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        hosts: Collection[str] = (),
        price: Price | None = None,
    ) -> None:
        """Describes an agent; its card is read when a worker is created from it, and again for the first request.

        Args:
            url: the agent's address, to which `/.well-known/agent-card.json` is added, or that of the card itself.
            description: the agent's purpose, for the planner; by default the name, description and skills in its card.
            api_key: the key, sent as a bearer token.
            headers: headers to send with every request; their values are kept secret.
            hosts: other hosts, with port if there is one, at which the agent's card may say that it takes requests.
            price: the price of a request, as `per_call`; by default unknown.

        Raises:
            ConfigError: an argument is invalid, or the A2A SDK is not installed.
        """
        if not is_http_url(url.strip()):
            raise ConfigError(
                f"a2a:{redact_url(url)} is no agent: write its URL, such as 'a2a:https://agent.example.com'"
            )
        if not is_importable("a2a"):
            raise ConfigError("agents that speak A2A need the A2A SDK: pip install 'rl-conductor[a2a]'")
        self.url = url.strip().rstrip("/")
        parts = urlsplit(self.url)
        self.name = f"a2a:{redact_url(self.url)}"
        self.is_encrypted = parts.scheme == "https"
        self.hosts = frozenset({parts.netloc.rpartition("@")[2], *hosts})
        self.headers = {
            name: SecretStr(usable_key(f"headers.{name}", value) or "") for name, value in (headers or {}).items()
        }
        key = usable_key("api_key", api_key)
        if key:
            self.headers["Authorization"] = SecretStr(f"Bearer {key}")
        self._secrets = (key, *url_secrets(self.url), *(value.get_secret_value() for value in self.headers.values()))
        redact_in_logs(self.url)
        self.price = price
        self._description = description
        self._card: dict[str, Any] | None = None
        self._connections = PerLoop(self._connect)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name.partition(':')[2]!r})"

    @property
    def description(self) -> str:
        """The agent's purpose: the name, description and skills in its card, unless one was passed."""
        if self._description is None:
            try:
                self._description = _describe(self.read_card())
            except ModelError as error:
                _log.warning("%s; its worker has no description, so pass description= or start the agent first", error)
                return ""
        return self._description

    @property
    def capabilities(self) -> Capabilities:
        """Text, and the images and PDF files that the card names as input, once it was read."""
        modes = [str(mode) for mode in _items((self._card or {}).get("defaultInputModes"))]
        return Capabilities(
            images=any(mode.startswith("image/") for mode in modes),
            files="application/pdf" in modes,
            reasoning_start="outside",
            plans=False,
        )

    def read_card(self) -> dict[str, Any]:
        """Returns the agent's card, which is read once; blocks until the agent has answered.

        Raises:
            ModelError: the agent can't be reached, or it has no card.
        """
        if self._card is None:
            with redacting(*self._secrets):
                self._card = import_module(CONNECTION_MODULE).read_card(self)
        return self._card

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply: the text of the agent's artifacts, or of its message if there are none.

        Closing the generator early, a timeout and a cancellation also cancel the task of the agent.
        """
        require(self, request)
        connection = self._connections.get()
        reply: A2AReply = connection.new_reply()
        with redacting(*self._secrets), _not_retried_once_started(reply), connection.translate_errors():
            async with aclosing(within(request.timeout, self._pieces(connection, request, reply))) as pieces:
                async for text in pieces:
                    yield Delta(text=text)
            yield Delta(completion=checked(reply.completion(self.price), request))

    async def aclose(self) -> None:
        """Closes the connections of the running event loop; the next request opens new ones."""
        connection = self._connections.drop()
        if connection is not None:
            await connection.aclose()

    async def _pieces(self, connection: A2AConnection, request: Request, reply: A2AReply) -> AsyncGenerator[str, None]:
        card = await asyncio.to_thread(self.read_card)
        async with aclosing(connection.run_task(card, request, reply)) as pieces:
            async for text in pieces:
                yield text

    def _connect(self) -> A2AConnection:
        connection: A2AConnection = import_module(CONNECTION_MODULE).A2AConnection(self)
        return connection


@contextmanager
def _not_retried_once_started(reply: A2AReply) -> Iterator[None]:
    """Marks errors as final once the agent has begun, because its work may have side effects and costs."""
    try:
        yield
    except ModelError as error:
        error.retryable = error.retryable and not reply.has_started
        raise


def _describe(card: Mapping[str, Any]) -> str:
    """Describes an agent by the name, the description and the skills in its card."""
    name, description = str(card.get("name") or ""), str(card.get("description") or "")
    skills = [str(skill.get("name")) for skill in _items(card.get("skills")) if isinstance(skill, dict)]
    parts = [": ".join(part for part in (name, description) if part)]
    parts += [f"skills: {', '.join(skills)}"] if skills else []
    return truncate_middle(" ".join("; ".join(parts).split()), MAX_DESCRIPTION_CHARS)


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
