"""An MCP server with tools of every kind: over stdio when this file is run, over HTTP with `serve`."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.mcpserver import Image, MCPServer
from mcp_types import CallToolResult

server = MCPServer("shop", log_level="CRITICAL")


@server.tool()
def stock(item: str, shop: str = "online") -> str:
    """Counts the pieces of an item in stock."""
    return f"{item}: 17 {shop}"


@server.tool(name="price.list")
def prices() -> dict[str, int]:
    """Lists all prices."""
    return {"pen": 3}


@server.tool()
def token() -> str:
    """Returns a secret of the server's own."""
    return f"the token is {os.environ.get('SHOP_TOKEN')}"


@server.tool()
def photo() -> Image:
    """Shows an item."""
    return Image(data=b"\x89PNG", format="png")


@server.tool()
def flood() -> str:
    """Returns far too much."""
    return "x" * 200_000


@server.tool()
def refuse() -> str:
    """Always fails."""
    raise ValueError("sold out")


@server.tool()
def empty() -> CallToolResult:
    """Returns nothing."""
    return CallToolResult(content=[])


@server.tool()
def crash() -> str:
    """Ends the server."""
    sys.stderr.write("out of paper\n")
    sys.stderr.flush()
    os._exit(3)


@server.tool()
async def wait() -> str:
    """Never returns."""
    waiting.set()
    await asyncio.Event().wait()
    return ""


waiting = threading.Event()
"""Set when the tool `wait` runs."""


@dataclass
class Site:
    """A server on loopback."""

    url: str
    headers: list[dict[str, str]] = field(default_factory=list)
    """The headers of each request."""
    server: uvicorn.Server | None = None


@contextmanager
def serve(app: Any) -> Iterator[Site]:
    """Runs an ASGI application on loopback in a thread; its MCP endpoint is `/mcp`."""
    site = Site("")

    async def recording(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            site.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await app(scope, receive, send)

    config = uvicorn.Config(recording, port=0, log_level="critical", ws="none", timeout_graceful_shutdown=1)
    site.server = uvicorn.Server(config)
    sock = config.bind_socket()
    sock.listen()  # connections wait until the thread has started
    site.url = f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
    thread = threading.Thread(target=site.server.run, args=([sock],))
    thread.start()
    try:
        yield site
    finally:
        site.server.should_exit = True
        thread.join()
        sock.close()


def http_app() -> Any:
    """Returns the ASGI application of the shop."""
    return server.streamable_http_app()


if __name__ == "__main__":
    if "--broken" in sys.argv:
        sys.exit(f"no shop for {os.environ.get('SHOP_TOKEN')}")
    server.run()
