"""Measures the processor time that an adapter adds to a call, compared with the same request on a bare HTTP client.

Run with `uv run python benchmarks/vendor_calls.py`. A vendor in a process of its own sends the same reply to every
request, in the form that the path asks for: 200 tokens, complete or in 200 chunks. Times are medians over interleaved
rounds, and of the processor, so the vendor's are not included. No model is called and nothing is spent.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import httpx2
from loopback import free_port, listens, run_program
from rich.console import Console
from rich.table import Table

from rl_conductor import Model, Request
from rl_conductor.models.anthropic.adapter import AnthropicModel
from rl_conductor.models.google.adapter import GoogleModel
from rl_conductor.models.openai.adapter import OpenAIModel

ROUNDS, CALLS, STREAMS, CONCURRENCY = 9, 40, 4, 100
CHUNKS = 200
WORDS = [f"word{number} " for number in range(CHUNKS)]
TARGETS = {"a call": "<= 0.5 ms", f"a call, {CONCURRENCY} at once": "<= 0.5 ms", "a chunk": "<= 60 µs"}
Call = Callable[[], Awaitable[object]]


@dataclass
class Protocol:
    """A vendor's protocol: its adapter, and the replies of the vendor."""

    library: str
    """The SDK or HTTP client that the adapter uses."""
    path: str
    stream_path: str
    model: Callable[[str], Model]
    reply: Any
    frames: list[Any]
    has_end: bool = False
    """A stream ends in `[DONE]`."""


def _openai_frame(part: str, text: str | None, finish: str | None = None) -> dict[str, Any]:
    usage = {"prompt_tokens": 20, "completion_tokens": CHUNKS, "total_tokens": CHUNKS + 20} if finish else None
    choice = {"index": 0, part: {"role": "assistant", "content": text}, "finish_reason": finish}
    kind = "chat.completion" if part == "message" else "chat.completion.chunk"
    return {"id": "x", "object": kind, "created": 0, "model": "m", "choices": [choice], "usage": usage}


def _anthropic_message(content: list[Any], stop: str | None) -> dict[str, Any]:
    usage = {"input_tokens": 20, "output_tokens": CHUNKS}
    fields = {"id": "x", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
    return fields | {"content": content, "stop_reason": stop, "usage": usage}


def _anthropic_frames() -> list[Any]:
    deltas = [{"type": "text_delta", "text": word} for word in WORDS]
    return [
        {"type": "message_start", "message": _anthropic_message([], None)},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": CHUNKS},
        },
        {"type": "message_stop"},
    ]


def _google_frame(text: str, finish: str | None) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": finish, "index": 0}
    usage = {"promptTokenCount": 20, "candidatesTokenCount": CHUNKS, "totalTokenCount": CHUNKS + 20}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m"}


PROTOCOLS = {
    "openai": Protocol(
        "openai",
        "/v1/chat/completions",
        "/v1/chat/completions",
        lambda url: OpenAIModel("m", base_url=f"{url}/v1", api_key="none"),
        _openai_frame("message", "".join(WORDS), "stop"),
        [*(_openai_frame("delta", word) for word in WORDS), _openai_frame("delta", "", "stop")],
        has_end=True,
    ),
    "anthropic": Protocol(
        "anthropic",
        "/v1/messages",
        "/v1/messages",
        lambda url: AnthropicModel("m", base_url=url, api_key="none"),
        _anthropic_message([{"type": "text", "text": "".join(WORDS)}], "end_turn"),
        _anthropic_frames(),
    ),
    "google": Protocol(
        "httpx2",
        "/v1/models/m:generateContent",
        "/v1/models/m:streamGenerateContent?alt=sse",
        lambda url: GoogleModel("m", base_url=url, api_key="none"),
        _google_frame("".join(WORDS), "STOP"),
        [*(_google_frame(word, None) for word in WORDS), _google_frame("", "STOP")],
    ),
}

# ------------------------------------------------------------------------------------------- vendor


def _complete_response(reply: Any) -> bytes:
    body = json.dumps(reply).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _stream_response(protocol: Protocol) -> bytes:
    events = [f"data: {json.dumps(frame)}\n\n" for frame in protocol.frames]
    if protocol.library == "anthropic":
        events = [f"event: {frame['type']}\n{event}" for frame, event in zip(protocol.frames, events, strict=True)]
    events += ["data: [DONE]\n\n"] if protocol.has_end else []
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event.encode()) for event in [*events, ""])
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + chunks


async def serve(port: int) -> None:
    """Serves the vendor until it is killed."""
    responses = {}
    for protocol in PROTOCOLS.values():
        responses[protocol.path, False] = _complete_response(protocol.reply)
        responses[protocol.stream_path, True] = _stream_response(protocol)

    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1]) if length else 0)
                path = head.split(b" ", 2)[1].decode()
                is_stream = "stream" in path or bool(json.loads(body).get("stream"))
                writer.write(responses[path, is_stream])
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve_connection, "127.0.0.1", port)
    await server.serve_forever()


@contextmanager
def vendor() -> Iterator[str]:
    """Runs the vendor in its own process during the block, and yields its URL."""
    port = free_port()
    with run_program([sys.executable, __file__, f"--serve={port}"], ready=listens(port)):
        yield f"http://127.0.0.1:{port}"


# --------------------------------------------------------------------------------------- contenders

REQUEST = Request.user("Which rivers cross Paris? " * 10)
BODY = {"model": "m", "messages": [{"role": "user", "content": REQUEST.messages[0].text}], "max_tokens": 4096}


def bare_call(client: httpx2.AsyncClient, url: str) -> Call:
    """The request on a bare client, which parses the reply's JSON."""

    async def call() -> object:
        return (await client.post(url, json=BODY, headers={"authorization": "Bearer none"})).json()

    return call


def bare_stream(client: httpx2.AsyncClient, url: str) -> Call:
    """The stream on a bare client, which reads its bytes only."""

    async def call() -> object:
        async with client.stream("POST", url, json=BODY | {"stream": True}) as response:
            return [chunk async for chunk in response.aiter_raw()]

    return call


def our_call(model: Model) -> Call:
    """The request through the adapter."""
    return lambda: model.complete(REQUEST)


def our_stream(model: Model) -> Call:
    """The stream through the adapter."""

    async def call() -> object:
        return [delta async for delta in model.stream(REQUEST)]

    return call


def at_once(call: Call) -> Call:
    """Makes `CONCURRENCY` calls at once, each over a connection of its own."""

    async def calls() -> object:
        return await asyncio.gather(*(call() for _ in range(CONCURRENCY)))

    return calls


async def measure(contenders: dict[str, Call], calls: int) -> dict[str, float]:
    """Returns the median microseconds of processor time a call of each contender, over interleaved rounds."""
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(ROUNDS + 1):
        for name, call in contenders.items():
            gc.collect()  # otherwise it would pay for the garbage of the one before
            started = time.process_time()
            for _ in range(calls):
                await call()
            if number:  # the first round opens connections and fills caches
                rounds[name].append((time.process_time() - started) / calls * 1e6)
    return {name: statistics.median(times) for name, times in rounds.items()}


async def measure_protocol(protocol: Protocol, url: str) -> Iterator[tuple[str, ...]]:
    """Returns the rows of a protocol: what, ours, the bare client's, and the difference."""
    model, client = protocol.model(url), httpx2.AsyncClient()
    calls = {"ours": our_call(model), "bare": bare_call(client, url + protocol.path)}
    streams = {"ours": our_stream(model), "bare": bare_stream(client, url + protocol.stream_path)}
    call, stream = await measure(calls, CALLS), await measure(streams, STREAMS)
    many = await measure({name: at_once(call) for name, call in calls.items()}, calls=1)
    each = {name: microseconds / CONCURRENCY for name, microseconds in many.items()}
    await model.aclose()
    await client.aclose()
    chunk = {key: (stream[key] - call[key]) / len(protocol.frames) for key in stream}
    return iter(
        (what, *(f"{value / scale:.{digits}f} {unit}" for value in (times["ours"], times["bare"], added)))
        for what, times, scale, digits, unit in (
            ("a call", call, 1e3, 2, "ms"),
            (f"a call, {CONCURRENCY} at once", each, 1e3, 2, "ms"),
            ("a chunk", chunk, 1, 0, "µs"),
        )
        for added in (times["ours"] - times["bare"],)
    )


async def main() -> None:
    """Runs all measurements and prints a table."""
    table = Table("what", "ours", "bare client", "added", "target", box=None, pad_edge=False)
    with vendor() as url:
        for name, protocol in PROTOCOLS.items():
            for what, *cells in await measure_protocol(protocol, url):
                label = f"{name} ({protocol.library} {version(protocol.library)}): {what}"
                table.add_row(label, *cells, TARGETS[what])
    console = Console(width=120)
    console.print(table)
    console.print(
        f"\nn = {ROUNDS} rounds of {CALLS} calls, {CONCURRENCY} calls at once, and {STREAMS} streams of {CHUNKS} "
        f"chunks, medians of processor time; "
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; no model called, "
        "nothing spent",
        style="dim",
        soft_wrap=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", type=int, help="the vendor's port, in its own process")
    port = parser.parse_args().serve
    asyncio.run(main() if port is None else serve(port))
