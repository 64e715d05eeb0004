"""Serves an ASGI application of a command, with a bearer token where others can reach it."""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rl_conductor._internal.sockets import is_loopback, open_listener
from rl_conductor.errors import ConfigError

SHUTDOWN_SECONDS = 5
"""Seconds for which runs may go on after the server was told to stop."""


@dataclass(frozen=True)
class ServerSocket:
    """The socket of a server, and the token that its clients must send."""

    socket: socket.socket
    host: str
    api_key: str | None

    @property
    def url(self) -> str:
        """The address of the server, without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.socket.getsockname()[1]}"


def listen(host: str, port: int, api_key_env: str | None) -> ServerSocket:
    """Opens the socket of a server, which needs an API key to listen on more than a loopback address.

    Args:
        host: the address to listen on.
        port: the port; 0 for a free one.
        api_key_env: the environment variable with the bearer token that clients must send.

    Raises:
        ConfigError: the variable is not set, the address can't be used, or other machines could connect without token.
    """
    api_key = os.environ.get(api_key_env, "") if api_key_env else None
    if api_key == "":
        raise ConfigError(f"--api-key-env: the environment variable {api_key_env!r} is not set")
    if api_key is None and not is_loopback(host):
        raise ConfigError(
            f"without a token, anyone who can reach {host} could spend your money: set a variable to a long random "
            "text and pass its name with --api-key-env, or leave out --host"
        )
    return ServerSocket(open_listener(host, port), host, api_key)


async def serve(app: ASGIApp, listener: ServerSocket) -> None:
    """Serves until the process is told to stop."""
    import uvicorn  # noqa: PLC0415 - 0.1 s

    config = uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=SHUTDOWN_SECONDS)
    await uvicorn.Server(config).serve([listener.socket])


def with_api_key(app: ASGIApp, api_key: str, *, public_paths: Collection[str] = ()) -> ASGIApp:
    """Returns the application behind a check of the bearer token, except for `public_paths`."""
    expected = f"Bearer {api_key}".encode()

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        is_public = scope.get("path") in public_paths and scope.get("method") == "GET"
        is_allowed = is_public or hmac.compare_digest(headers.get(b"authorization", b""), expected)
        if scope["type"] == "http" and not is_allowed:
            await PlainTextResponse("missing or wrong bearer token", status_code=401)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return checked


def local_only(app: ASGIApp) -> ASGIApp:
    """Returns the application, which refuses requests that web pages could send: by DNS rebinding or across origins."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        addresses = [b"//" + headers.get(b"host", b""), *([headers[b"origin"]] if b"origin" in headers else [])]
        is_local = all(map(_is_loopback_address, addresses))
        if scope["type"] == "http" and not is_local:
            await PlainTextResponse("only for programs on this machine", status_code=403)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return checked


def _is_loopback_address(address: bytes) -> bool:
    try:
        return is_loopback(urlsplit(address.decode("latin-1")).hostname or "")
    except ValueError:  # brackets without a partner, or characters that no host has
        return False
