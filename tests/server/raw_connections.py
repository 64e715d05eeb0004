"""Raw connections, for clients that send or read what no client library would."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from server.conftest import At

MORE_THAN_SOCKETS_HOLD = 6_000_000
"""Bytes of a response that a connection with a small receive buffer does not hold back for a reader."""


@asynccontextmanager
async def connection(at: At) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
    """A raw connection whose receive buffer is small."""
    host, port = at.url.removeprefix("http://").split(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    raw.connect((host, int(port)))
    raw.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=raw)
    try:
        yield reader, writer
    finally:
        writer.close()
