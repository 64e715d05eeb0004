"""Clients of the server benchmarks: Chat Completions over bare sockets, with minimal time of their own."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

KEY = "sk-one-key-for-both-servers"


@dataclass
class Connection:
    """A kept-alive connection."""

    base_url: str
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(default=None, init=False)

    async def ask(self, model: str, text: str) -> None:
        """Sends one chat completion and reads its reply; a failure ends the benchmark."""
        reader, response_head = await self._send({"model": model, "messages": [{"role": "user", "content": text}]})
        length = response_head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        self._check(response_head, await reader.readexactly(int(length)))

    async def stream(self, model: str, text: str) -> float:
        """Streams one chat completion to its end; returns the seconds until the first text."""
        messages = [{"role": "user", "content": text}]
        started, first = time.perf_counter(), 0.0
        reader, response_head = await self._send({"model": model, "messages": messages, "stream": True})
        self._check(response_head, b"")
        while (line := await reader.readline()) != b"data: [DONE]\n":
            if not line:
                raise SystemExit(f"{self.base_url}: the stream ended early")
            if not first and line.startswith(b"data: ") and has_text(line):
                first = time.perf_counter() - started
        await reader.readuntil(b"0\r\n\r\n")
        return first

    async def _send(self, body: dict[str, object]) -> tuple[asyncio.StreamReader, bytes]:
        host, port = urlsplit(self.base_url).netloc.split(":")
        if self._streams is None:
            self._streams = await asyncio.open_connection(host, int(port))
        reader, writer = self._streams
        content = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {KEY}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        return reader, await reader.readuntil(b"\r\n\r\n")

    def _check(self, response_head: bytes, response_body: bytes) -> None:
        if b" 200 " not in response_head.partition(b"\r\n")[0]:
            raise SystemExit(f"{self.base_url}: {response_head.decode()}{response_body.decode()}")

    async def close(self) -> None:
        """Closes the connection, if it is open."""
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()


def has_text(line: bytes) -> bool:
    """Tells whether a line of a stream has a piece of the answer."""
    choices = json.loads(line.removeprefix(b"data: "))["choices"]
    return any(choice["delta"].get("content") for choice in choices)


class Client:
    """Sends single calls, streams, or workflows of a plan and three steps, to one server."""

    def __init__(self, base_url: str, *, process: int | None = None, runs_workflows: bool = False) -> None:
        """Initializes the client.

        Args:
            base_url: The server's address, without `/v1`.
            process: The id of the server's process, to measure its processor time.
            runs_workflows: Whether the server runs a whole workflow in one request.
        """
        self.process = process
        self._base_url = base_url
        self._runs_workflows = runs_workflows
        self._connections: list[Connection] = []

    async def close(self) -> None:
        """Closes all connections of this client."""
        while self._connections:
            await self._connections.pop().close()

    async def run_single(self) -> None:
        """Asks one worker one question."""
        await self._ask("one" if self._runs_workflows else "a", "This is question 1.")

    async def run_workflow(self) -> None:
        """Runs a plan, two parallel parts, and the answer."""
        if self._runs_workflows:
            await self._ask("three", "This is question 1.")
            return
        await self._ask("planner", "This is question 1.")
        parts = ("Write part one of question 1.", "Write part two of question 1.")
        await asyncio.gather(*(self._ask(name, part) for name, part in zip("ab", parts, strict=True)))
        await self._ask("c", "Write the answer of question 1.")

    async def run_stream(self, model: str) -> float:
        """Streams the long reply of one worker; returns the seconds until its first text."""
        connection = self._connection()
        first = await connection.stream(model, "This is question 1.")
        self._connections.append(connection)
        return first

    async def _ask(self, model: str, text: str) -> None:
        connection = self._connection()
        await connection.ask(model, text)
        self._connections.append(connection)

    def _connection(self) -> Connection:
        return self._connections.pop() if self._connections else Connection(self._base_url)
