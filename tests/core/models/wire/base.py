"""A vendor's HTTP service on loopback, real down to the socket, whose behaviour the *model name* chooses.

    echo            says "You said: <last user text>" in several pieces
    usage           says "counted" with `COUNTS` as its usage
    uncounted       says "for nothing" with no tokens at all as its usage
    tools           calls `CALLS[0]`; `parallel-tools` calls both, `calls-without-ids` with empty ids
    tool-result     says what the last tool message held
    json            says JSON when a schema arrived, and "no schema" when none did
    image, file     says the media types of the images and files that arrived
    reasoning       thinks "six times seven", then says "42"
    length          is cut off at the token limit; `length-empty` before it wrote any answer
    filter          was withheld by the content filter
    empty           says nothing at all
    unauthorized, forbidden, missing, rate-limit, overloaded, server-error, context, bad-request
                    the vendor's own errors; rate-limit asks for 7 seconds
    malformed       HTTP 200 with broken JSON, or a broken event
    html            HTTP 200 with a gateway's web page
    gateway         HTTP 503 with one
    wrong-shape     HTTP 200 with JSON of another protocol
    truncated       the socket closes in the middle of the answer
    unfinished      the stream ends politely, but before the reply did
    breaks          the stream reports the vendor's error midway (whole replies: like server-error)
    sheds           calls both of `CALLS`, and the stream reports midway that the server is overloaded
    redirect        sends the client on to the same path of another host, which is this service again
    hang            never answers
    stall           starts to stream, then falls silent (whole replies: like hang)
    trickle         never stops arriving, a little at a time
    held...         streams a whole reply, and keeps the response open
    byte-order-mark begins the stream with one

A vendor's file says how its protocol writes these; this file knows sockets and nothing of any protocol.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

SECRET = "sk-loopback-0123456789uvwxyz"
"""The API key the models are given; it must never be seen in an error or a repr."""

CALLS = (("call_1", "weather", '{"city": "Kyiv"}'), ("call_2", "clock", '{"zone": "UTC"}'))
"""Id, tool and arguments of the calls that `tools` and `parallel-tools` make (vendors without ids leave them out)."""

MASKED = f"{SECRET[:7]}{'*' * 12}{SECRET[-4:]}"
"""The key as OpenAI quotes it."""
TORN = SECRET[3:-3]
"""A piece of it."""

FAILURES = (
    "unauthorized",
    "masked-key",
    "torn-key",
    "forbidden",
    "missing",
    "rate-limit",
    "overloaded",
    "server-error",
    "context",
    "bad-request",
)


@dataclass(frozen=True)
class Counts:
    """Tokens as this package counts them: `cached` is a share of `input`, `reasoning` one of `output`."""

    input: int = 3
    cached: int = 0
    output: int = 5
    reasoning: int = 0


COUNTS = Counts(input=1000, cached=400, output=300, reasoning=200)


@dataclass(frozen=True)
class Wire:
    """A request as it came over the wire."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: Any


@dataclass(frozen=True)
class Seen:
    """A request, in words common to all vendors."""

    scenario: str
    """The model's name."""
    stream: bool
    text: str = ""
    """The last user text."""
    tool_result: str = ""
    """The content of the last tool message."""
    media: tuple[str, ...] = ()
    """Media types of the images and files, in order; an image by address is "url"."""
    schema: dict[str, Any] | None = None
    """The JSON schema asked for."""
    system: str = ""
    tools: tuple[str, ...] = ()
    """Names of the tools offered."""
    tool_choice: str = ""
    """`auto`, `none`, `required` or a tool's name; empty when the request leaves it open."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """The fields of `Sampling` in the request, under our names and in our units; `stop` as a tuple."""


@dataclass(frozen=True)
class Said:
    """A good reply, in words common to all vendors."""

    pieces: tuple[str, ...] = ()
    """The text, as the stream cuts it."""
    thought: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    """Id, tool and arguments (JSON text)."""
    finish: str = "stop"
    """`stop`, `length`, `tool_calls` or `content_filter`."""
    stop_sequence: str | None = None
    """The stop sequence that ended the text."""
    counts: Counts = Counts()

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)


@dataclass(frozen=True)
class Failure:
    """An HTTP error as a vendor writes it."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


def _cut(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\S+\s?", text))


REPLIES: dict[str, Callable[[Seen], Said]] = {
    "usage": lambda _: Said(pieces=("counted",), counts=COUNTS),
    "uncounted": lambda _: Said(pieces=("for nothing",), counts=Counts(input=0, output=0)),
    "tools": lambda _: Said(calls=CALLS[:1], finish="tool_calls"),
    "calls-without-ids": lambda _: Said(calls=tuple(("", *call[1:]) for call in CALLS), finish="tool_calls"),
    "sheds": lambda _: Said(calls=CALLS, finish="tool_calls"),
    "parallel-tools": lambda _: Said(calls=CALLS, finish="tool_calls"),
    "tool-result": lambda seen: Said(pieces=_cut(f"The tool said: {seen.tool_result}")),
    "json": lambda seen: Said(pieces=('{"answer"', ": 42}") if seen.schema is not None else ("no schema",)),
    "image": lambda seen: Said(pieces=(f"I see {', '.join(seen.media)}",)),
    "file": lambda seen: Said(pieces=(f"I read {', '.join(seen.media)}",)),
    "reasoning": lambda _: Said(pieces=("4", "2"), thought="six times seven", counts=COUNTS),
    "stop-sequence": lambda _: Said(pieces=("up to", " here"), stop_sequence="END"),
    "length": lambda _: Said(pieces=("Once upon", " a"), finish="length"),
    "length-empty": lambda _: Said(finish="length"),
    "filter": lambda _: Said(finish="content_filter"),
    "empty": lambda _: Said(),
}


class WireServer(ABC):
    """One vendor's service. Runs in a thread of its own, so that any number of event loops can call it."""

    def __init__(self) -> None:
        self.requests: list[Wire] = []
        """Every request so far, oldest first."""
        self.open = 0
        """Requests that are neither answered nor given up by the client."""
        self.connections = 0
        """Connections that were ever made."""
        self.connected = 0
        """Connections that are open now."""
        self.port = 0
        self._loop = asyncio.new_event_loop()

    @property
    def url(self) -> str:
        """Scheme, host and port, without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def last(self) -> Wire:
        """The latest request."""
        return self.requests[-1]

    async def until_open(self, count: int) -> None:
        """Return once `count` requests are open; fail after some seconds."""
        await _until(lambda: self.open == count)

    async def until_connected(self, count: int) -> None:
        """Return once `count` connections are open; fail after some seconds."""
        await _until(lambda: self.connected == count)

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        """The service, up for as long as the `with` block."""
        server = cls()
        up = threading.Event()
        thread = threading.Thread(target=lambda: server._loop.run_until_complete(server._run(up)))
        thread.start()
        assert up.wait(10)
        try:
            yield server
        finally:
            server._loop.call_soon_threadsafe(server._down.set)
            thread.join()
            server._loop.close()

    # ------------------------------------------------------------------- what a vendor's protocol says

    @abstractmethod
    def read(self, wire: Wire) -> Seen:
        """Reads a request."""

    @abstractmethod
    def whole(self, seen: Seen, said: Said) -> Any:
        """The JSON body of a reply that is not streamed."""

    @abstractmethod
    def events(self, seen: Seen, said: Said) -> list[str]:
        """The frames of a streamed reply, each with its blank line (`data: {...}\\n\\n`)."""

    @abstractmethod
    def failure(self, scenario: str) -> Failure:
        """The vendor's answer for each name in `FAILURES`."""

    def broken_event(self, scenario: str) -> str:
        """The frame by which the vendor reports an error in mid-stream."""
        return f"data: {json.dumps(self.failure(scenario).body)}\n\n"

    stream_type = "text/event-stream"
    """The content type of a streamed reply."""

    def frame(self, event: str) -> bytes:
        """A frame of a streamed reply as it is sent."""
        return event.encode()

    # -------------------------------------------------------------------------------------- sockets

    async def _run(self, up: threading.Event) -> None:
        self._down = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        up.set()
        await self._down.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.connected += 1
        task = asyncio.create_task(self._converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while wire := await _request(reader):
                self.requests.append(wire)
                self.open += 1
                try:
                    await self._answer(wire, reader, writer)
                except (AssertionError, LookupError, TypeError, ValueError) as fault:
                    await _send(writer, json.dumps({"the test server failed": repr(fault)}), status=500)
                finally:
                    self.open -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client hung up, or a scenario did
        finally:
            self.connected -= 1
            writer.transport.abort()

    async def _answer(self, wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = self.read(wire)
        scenario = seen.scenario
        if scenario in FAILURES or (scenario == "breaks" and not seen.stream):
            failure = self.failure("server-error" if scenario == "breaks" else scenario)
            await _send(writer, json.dumps(failure.body), status=failure.status, headers=failure.headers)
        elif scenario == "redirect":
            elsewhere = f"http://localhost:{self.port}{wire.path}"
            await _send(writer, "", status=307, headers={"Location": elsewhere})
        elif scenario == "hang" or (scenario == "stall" and not seen.stream):
            await reader.read()
        elif scenario == "html":
            await _send(writer, "<html><body>Please log in</body></html>", kind="text/html")
        elif scenario == "gateway":
            page = "<html><head><title>503 Try later</title></head><body>nginx</body></html>"
            await _send(writer, page, status=503, kind="text/html")
        elif scenario == "wrong-shape" and not seen.stream:
            await _send(writer, '{"unexpected": true}')
        elif seen.stream:
            await self._stream(seen, reader, writer)
        else:
            await self._whole(seen, writer)

    async def _whole(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        body = json.dumps(self.whole(seen, reply_to(seen)))
        if seen.scenario == "trickle":
            writer.write(_head(200, "application/json", "Transfer-Encoding: chunked"))
            await _trickle(writer, b" ")
        if seen.scenario == "truncated":
            await _send(writer, body[: len(body) // 2], length=len(body))
            raise ConnectionResetError
        await _send(writer, body[: len(body) // 2] if seen.scenario == "malformed" else body)

    async def _stream(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        events = self.events(seen, reply_to(seen))
        match seen.scenario:
            case "malformed":
                events[len(events) // 2] = events[len(events) // 2].rstrip()[:-1] + "\n\n"
            case "wrong-shape":
                events = ['data: {"unexpected": true}\n\n']
            case "breaks":
                events[len(events) // 2 :] = [self.broken_event("server-error")]
            case "sheds":
                events[(len(events) + 1) // 2 :] = [self.broken_event("overloaded")]
            case "truncated" | "unfinished" | "stall" | "trickle":
                del events[len(events) // 2 :]
        writer.write(_head(200, self.stream_type, "Transfer-Encoding: chunked"))
        if seen.scenario == "byte-order-mark" and self.stream_type == "text/event-stream":
            await _chunk(writer, BOM_UTF8)
        for event in events:
            await _chunk(writer, self.frame(event))
        if seen.scenario == "trickle":
            await _trickle(writer, self.frame(events[-1]))
        is_held = seen.scenario == "stall" or seen.scenario.startswith("held")
        if is_held:
            await reader.read()
        if is_held or seen.scenario == "truncated":
            raise ConnectionResetError
        await _chunk(writer, b"")


async def _trickle(writer: asyncio.StreamWriter, data: bytes) -> NoReturn:
    while True:
        await asyncio.sleep(0.05)
        await _chunk(writer, data)


async def _until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached():  # noqa: ASYNC110  (what it waits for is another thread's)
            await asyncio.sleep(0.005)


def reply_to(seen: Seen) -> Said:
    """The good reply of a scenario."""
    echo = Said(pieces=_cut(f"You said: {seen.text}"))
    return REPLIES[seen.scenario](seen) if seen.scenario in REPLIES else echo


async def _request(reader: asyncio.StreamReader) -> Wire | None:
    """The next request of a kept-alive connection; `None` when the client hung up between two."""
    line = (await reader.readline()).decode()
    if not line:
        return None
    headers = {}
    while header := (await reader.readline()).decode().strip():
        name, _, value = header.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Wire(path=line.split()[1], headers=headers, body=json.loads(body) if body else None)


async def _send(
    writer: asyncio.StreamWriter,
    body: str,
    *,
    status: int = 200,
    kind: str = "application/json",
    headers: dict[str, str] | None = None,
    length: int | None = None,
) -> None:
    content = body.encode()
    size = f"Content-Length: {len(content) if length is None else length}"
    writer.write(_head(status, kind, size, *(f"{name}: {value}" for name, value in (headers or {}).items())))
    writer.write(content)
    await writer.drain()


def _head(status: int, kind: str, *headers: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status} -", f"Content-Type: {kind}", *headers, "", "")).encode()


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    """One chunk; an empty one ends the body."""
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()
