"""HTTP connections to vendors, for clients of httpx and httpx2: their reuse, and the TLS context that all share.

The pool of these libraries polls the sockets of all its idle connections for each request, so that with a hundred calls
in flight a call takes twice the processor time. `ConnectionStack` polls one.
"""

from __future__ import annotations

import os
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import cache
from types import ModuleType
from typing import Any
from urllib.request import getproxies

from rl_conductor.models.http.reply_limit import ACCEPTED_ENCODINGS, event_hooks

IDLE_SECONDS = 5.0
"""Seconds after which an idle connection is closed, as in httpx."""
MAX_IDLE = 100
"""Maximum number of idle connections, as in the vendors' SDKs."""


def tls_context(library: ModuleType) -> ssl.SSLContext:
    """Returns the default context of httpx or httpx2 for the certificates that the environment names.

    All clients of a process share it, because reading the root certificates takes 20 ms.
    """
    return _create_context(library, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _create_context(library: ModuleType, _file: str | None, _folder: str | None) -> ssl.SSLContext:
    context: ssl.SSLContext = library.create_ssl_context()
    return context


def connection_settings(library: ModuleType) -> dict[str, Any]:
    """Returns arguments for an `AsyncClient` of httpx or httpx2 that limit replies and reuse connections.

    If the environment names proxies, the client chooses among them with its own pools.
    """
    context = tls_context(library)
    has_proxies = any(name != "no" for name in getproxies())
    return {
        "headers": ACCEPTED_ENCODINGS,
        "event_hooks": event_hooks(),
        "follow_redirects": False,  # they could leak the key
        "verify": context,
        "transport": None if has_proxies else _stack_class(library)(library, context),
    }


class ConnectionStack:
    """A transport that sends a request over the connection that became idle last, or a new one if none is idle."""

    def __init__(self, library: Any, context: ssl.SSLContext) -> None:
        self._library = library
        self._context = context
        self._stream_class = _stream_class(library.AsyncByteStream)
        self._idle = deque[tuple[float, Any]]()
        """Transports of one connection each, with the time at which they became idle; the oldest first."""
        self._is_closed = False

    async def handle_async_request(self, request: Any) -> Any:
        """Sends a request; its connection is idle again when the response is closed."""
        transport = self._idle.pop()[1] if self._idle else self._open()
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            await self._release(transport)
            raise
        response.stream = self._stream_class(response.stream, lambda: self._release(transport))
        return response

    async def aclose(self) -> None:
        """Closes all connections, those in use when their responses end."""
        self._is_closed = True
        while self._idle:
            await self._idle.pop()[1].aclose()

    def _open(self) -> Any:
        limits = self._library.Limits(max_connections=1, keepalive_expiry=IDLE_SECONDS)
        return self._library.AsyncHTTPTransport(verify=self._context, limits=limits)

    async def _release(self, transport: Any) -> None:
        now = time.monotonic()
        self._idle.append((now, transport))
        while self._idle and self._is_surplus(now):
            await self._idle.popleft()[1].aclose()

    def _is_surplus(self, now: float) -> bool:
        return self._is_closed or len(self._idle) > MAX_IDLE or self._idle[0][0] < now - IDLE_SECONDS


class _ReleasingStream:
    """The body of a response, which releases its connection when it is closed."""

    def __init__(self, inner: Any, release: Callable[[], Any]) -> None:
        self._inner = inner
        self._release: Callable[[], Any] | None = release

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            yield chunk

    async def aclose(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            try:
                await self._inner.aclose()
            finally:
                await release()


@cache
def _stack_class(library: ModuleType) -> Callable[..., Any]:
    return type("ConnectionStack", (ConnectionStack, library.AsyncBaseTransport), {})


@cache
def _stream_class(base: type) -> Callable[..., Any]:
    return type("ReleasingStream", (_ReleasingStream, base), {})
