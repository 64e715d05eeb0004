"""Vendors' replies that would exhaust the memory, from a real server."""

from __future__ import annotations

import json
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rl_conductor.errors import BadResponseError
from rl_conductor.models.anthropic.adapter import AnthropicModel
from rl_conductor.models.base import Model
from rl_conductor.models.google.adapter import GoogleModel
from rl_conductor.models.http.reply_limit import MAX_REPLY_BYTES, MAX_STREAM_BYTES
from rl_conductor.models.openai.adapter import OpenAIModel
from rl_conductor.models.openai.wire import Reply
from rl_conductor.models.replies.size import CHARS_PER_PART, max_reply_chars
from rl_conductor.types import Request

MEGABYTE = 2**20
BLOCK = b" " * MEGABYTE
MEGABYTES = 256
MAX_MEMORY = 8 * MAX_REPLY_BYTES
REQUEST = Request.user("Say it.")


def plain() -> Iterator[bytes]:
    return iter([BLOCK] * MEGABYTES)


def gzip_bomb() -> Iterator[bytes]:
    """Sends the whole reply as one small chunk."""
    state = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    yield b"".join(state.compress(BLOCK) for _ in range(MEGABYTES)) + state.flush()


async def drain(model: Model) -> None:
    async for _ in model.stream(REQUEST):
        pass


@contextmanager
def serve(encoding: str, content_type: str, body: Any) -> Iterator[str]:
    """A server that answers every request with this body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", content_type)
            self.send_header("content-encoding", encoding)
            self.end_headers()
            with suppress(OSError):
                for chunk in body():
                    self.wfile.write(chunk)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("encoding", "body"), [("identity", plain), ("gzip", gzip_bomb)])
@pytest.mark.parametrize("vendor", [OpenAIModel, AnthropicModel, GoogleModel])
async def test_a_huge_reply_is_rejected_within_bounded_memory(
    vendor: Any, encoding: str, body: Any, streamed: bool
) -> None:
    content_type = "text/event-stream" if streamed else "application/json"
    with serve(encoding, content_type, body) as url:
        model: Model = vendor("m", base_url=f"{url}/v1" if vendor is OpenAIModel else url, api_key="k")
        tracemalloc.start()
        try:
            with pytest.raises(BadResponseError, match="the reply is larger than 8,388,608 bytes") as caught:
                await (drain(model) if streamed else model.complete(REQUEST))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            await model.aclose()
    assert peak < MAX_MEMORY
    assert not caught.value.retryable


def events_of(*values: Any) -> bytes:
    """Events of a stream, named like their type if they have one."""
    names = (f"event: {value['type']}\n" if "type" in value else "" for value in values)
    return "".join(f"{name}data: {json.dumps(value)}\n\n" for name, value in zip(names, values, strict=True)).encode()


def chat_delta(**delta: Any) -> bytes:
    return events_of({"choices": [{"index": 0, "delta": delta}]})


def block_delta(start: dict[str, Any], **delta: Any) -> tuple[bytes, bytes]:
    """The beginning of a message with one content block, and an addition to the block."""
    message = {"type": "message", "role": "assistant", "model": "m", "content": [], "usage": {}}
    beginning = events_of(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": start},
    )
    return beginning, events_of({"type": "content_block_delta", "index": 0, "delta": delta})


def part(**fields: Any) -> bytes:
    return events_of({"candidates": [{"content": {"role": "model", "parts": [fields]}}]})


PIECE = "x" * 500
CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": PIECE}}
TOOL_USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
ENDLESS: dict[str, tuple[Any, bytes, bytes]] = {
    "OpenAI's text": (OpenAIModel, b"", chat_delta(content=PIECE)),
    "OpenAI's reasoning": (OpenAIModel, b"", chat_delta(reasoning_content=PIECE)),
    "OpenAI's arguments": (OpenAIModel, b"", chat_delta(tool_calls=[CALL])),
    "OpenAI's calls": (OpenAIModel, b"", chat_delta(tool_calls=[{"function": {"name": "f"}}])),
    "Anthropic's text": (
        AnthropicModel,
        *block_delta({"type": "text", "text": ""}, type="text_delta", text=PIECE),
    ),
    "Anthropic's reasoning": (
        AnthropicModel,
        *block_delta({"type": "thinking", "thinking": ""}, type="thinking_delta", thinking=PIECE),
    ),
    "Anthropic's arguments": (
        AnthropicModel,
        *block_delta(TOOL_USE, type="input_json_delta", partial_json=PIECE),
    ),
    "Anthropic's blocks": (
        AnthropicModel,
        b"",
        events_of({"type": "content_block_start", "index": 0, "content_block": TOOL_USE | {"input": {"a": PIECE}}}),
    ),
    "Google's text": (GoogleModel, b"", part(text=PIECE)),
    "Google's reasoning": (GoogleModel, b"", part(text=PIECE, thought=True)),
    "Google's calls": (GoogleModel, b"", part(functionCall={"name": "f", "args": {"a": PIECE}})),
}


@pytest.mark.parametrize("name", ENDLESS)
async def test_an_endless_reply_is_closed_at_the_limit_of_its_characters(name: str) -> None:
    vendor, beginning, piece = ENDLESS[name]
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        yield beginning
        while True:
            sent += 1
            yield piece

    with serve("identity", "text/event-stream", body) as url:
        model: Model = vendor("m", base_url=f"{url}/v1" if vendor is OpenAIModel else url, api_key="k")
        limit = max_reply_chars.set(10 * CHARS_PER_PART)
        message = f"limits.reply_chars={10 * CHARS_PER_PART} is used up before the reply ended; raise it"
        with pytest.raises(BadResponseError, match=message) as caught:
            await drain(model)
        max_reply_chars.reset(limit)
        await model.aclose()
    assert not caught.value.retryable
    assert sent * len(piece) < MAX_STREAM_BYTES / 4


def test_small_pieces_of_a_stream_are_not_kept_one_by_one() -> None:
    reply, pieces = Reply("m"), 110_000
    tracemalloc.start()
    try:
        for number in range(pieces):
            reply.add({"choices": [{"index": 0, "delta": {"content": f"{number:05} "}}]})
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert size < 24 * pieces


async def test_a_reply_with_broken_or_unknown_compression_is_rejected() -> None:
    for encoding, message in (("gzip", "can't be decompressed"), ("br", "content-encoding 'br'")):
        with serve(encoding, "application/json", lambda: iter([b"not compressed"])) as url:
            model = OpenAIModel("m", base_url=f"{url}/v1", api_key="k")
            with pytest.raises(BadResponseError, match=message):
                await model.complete(REQUEST)
            await model.aclose()


@pytest.mark.parametrize("vendor", [OpenAIModel, AnthropicModel, GoogleModel])
async def test_json_nested_too_deep_is_a_bad_response(vendor: Any) -> None:
    with serve("identity", "application/json", lambda: iter([b"[" * 100_000])) as url:
        model = vendor("m", base_url=url, api_key="none")
        with pytest.raises(BadResponseError):
            await model.complete(REQUEST)
        await model.aclose()
