from __future__ import annotations

import asyncio
import inspect
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import certifi
import httpx2
import pytest

from rl_conductor import model
from rl_conductor.models.anthropic.adapter import AnthropicModel
from rl_conductor.models.google.adapter import GoogleModel
from rl_conductor.models.http import connections
from rl_conductor.models.http.connections import ConnectionStack, connection_settings, tls_context
from rl_conductor.models.openai.adapter import OpenAIModel


def context_of(client: Any) -> ssl.SSLContext:
    """Returns the TLS context of a client of httpx2."""
    transport = client._transport
    context = transport._context if isinstance(transport, ConnectionStack) else transport._pool._ssl_context
    assert isinstance(context, ssl.SSLContext)
    return context


async def test_clients_of_all_vendors_share_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the cache by which `conftest.py` spares the clients of tests the same work.
    monkeypatch.setattr(ssl, "create_default_context", inspect.unwrap(ssl.create_default_context))
    contexts = []
    for name in ("openai:gpt-5", "openai:gpt-5-mini", "anthropic:claude-sonnet-4-5", "google:gemini-2.5-flash"):
        made = model(name, api_key="none")
        assert isinstance(made, OpenAIModel | AnthropicModel | GoogleModel)
        contexts.append(
            context_of(made._clients.get() if isinstance(made, GoogleModel) else made._clients.get()._client)
        )
        await made.aclose()
    assert len(contexts) == 4
    assert len(set(contexts)) == 1
    assert contexts[0].verify_mode == ssl.CERT_REQUIRED
    assert contexts[0].check_hostname


def test_other_certificates_make_another_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    default = tls_context(httpx2)
    monkeypatch.setenv("SSL_CERT_FILE", certifi.where())
    other = tls_context(httpx2)
    assert other is not default
    assert tls_context(httpx2) is other
    monkeypatch.delenv("SSL_CERT_FILE")
    assert tls_context(httpx2) is default


@dataclass
class Vendor:
    """Answers requests on all its connections when `gate` is set."""

    opened: int = 0
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    requests: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection until the client closes it."""
        self.opened += 1
        self.open.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                await reader.readexactly(int(length[1]) if length else 0)
                self.requests += 1
                self.changed.set()
                await self.gate.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open.discard(writer)
            self.changed.set()
            writer.close()

    async def until(self, *, open_connections: int | None = None, requests: int | None = None) -> None:
        """Waits until so many connections are open, or so many requests have arrived."""
        async with asyncio.timeout(10):
            while open_connections not in (None, len(self.open)) or requests not in (None, self.requests):
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def vendor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Vendor]:
    """A vendor that answers at once, in an environment without proxies."""
    monkeypatch.setattr(connections, "getproxies", dict)
    running = Vendor()
    running.gate.set()
    async with await asyncio.start_server(running.serve, "127.0.0.1", 0) as server:
        running.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        yield running
        for writer in running.open:
            writer.close()


@asynccontextmanager
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    """A client with the settings of the adapters."""
    async with httpx2.AsyncClient(**connection_settings(httpx2)) as http:
        assert isinstance(http._transport, ConnectionStack)
        yield http


async def test_requests_one_after_another_share_a_connection(vendor: Vendor) -> None:
    async with client() as http:
        replies = [await http.post(vendor.url, content=b"question") for _ in range(5)]
    assert [reply.text for reply in replies] == ["ok"] * 5
    assert vendor.opened == 1
    await vendor.until(open_connections=0)


async def test_requests_at_once_have_connections_of_their_own_which_later_ones_reuse(vendor: Vendor) -> None:
    async with client() as http:
        for _ in range(3):
            await asyncio.gather(*(http.get(vendor.url) for _ in range(8)))
        assert (vendor.opened, vendor.requests) == (8, 24)


async def test_a_connection_that_the_vendor_closed_is_replaced(vendor: Vendor) -> None:
    async with client() as http:
        await http.get(vendor.url)
        for writer in vendor.open.copy():
            writer.close()
        await vendor.until(open_connections=0)
        assert (await http.get(vendor.url)).text == "ok"
    assert vendor.opened == 2


async def test_a_cancelled_request_closes_its_connection_and_no_other(vendor: Vendor) -> None:
    async with client() as http:
        await http.get(vendor.url)
        vendor.gate.clear()
        request = asyncio.create_task(http.get(vendor.url))
        await vendor.until(requests=2)
        request.cancel()
        await asyncio.wait({request})
        vendor.gate.set()
        await vendor.until(open_connections=0)
        assert (await http.get(vendor.url)).text == "ok"


async def test_connections_that_are_idle_for_long_are_closed(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client() as http:
        await asyncio.gather(*(http.get(vendor.url) for _ in range(4)))
        monkeypatch.setattr(connections, "IDLE_SECONDS", -1.0)
        await http.get(vendor.url)
        await vendor.until(open_connections=0)


async def test_surplus_idle_connections_are_closed(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_IDLE", 2)
    async with client() as http:
        await asyncio.gather(*(http.get(vendor.url) for _ in range(6)))
        assert vendor.opened == 6
        await vendor.until(open_connections=2)


async def test_a_response_that_ends_after_its_client_was_closed_closes_its_connection(vendor: Vendor) -> None:
    http = httpx2.AsyncClient(**connection_settings(httpx2))
    async with http.stream("GET", vendor.url) as response:
        await http.aclose()
        assert await response.aread() == b"ok"
    await vendor.until(open_connections=0)


async def test_proxies_of_the_environment_are_left_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "localhost")
    assert isinstance(connection_settings(httpx2)["transport"], ConnectionStack)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert connection_settings(httpx2)["transport"] is None
