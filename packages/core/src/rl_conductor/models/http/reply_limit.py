"""Limits the size of vendors' replies, before and after decompression, so that none can exhaust the memory.

The byte order mark with which some servers begin a stream is removed: the readers in vendors' libraries would take it
for a part of the first event, and lose that.
"""

from __future__ import annotations

import zlib
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from functools import cache
from typing import Any

MAX_REPLY_BYTES = 8 * 2**20
"""Maximum size of a complete reply, and of one line of a stream; the longest replies of models take about 1 MB."""
MAX_STREAM_BYTES = 128 * 2**20
"""Maximum size of a streamed reply, which takes about 300 bytes a token."""
BINARY_STREAM = "application/vnd.amazon.eventstream"
"""The content type of AWS's streams; their decoder bounds the size of one message itself."""
PIECE_BYTES = 64 * 2**10
"""Maximum size of a decompressed piece."""
ACCEPTED_ENCODINGS = {"accept-encoding": "gzip, deflate"}
"""The request header that goes with `limit_reply`, which decompresses no other encodings."""
WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class ReplyLimitError(Exception):
    """A reply is too large, or its compression is broken or unsupported."""


def event_hooks() -> dict[str, list[Callable[[Any], Awaitable[None]]]]:
    """Returns hooks for a client of httpx or httpx2 that apply `limit_reply` to each response."""
    return {"response": [limit_reply]}


async def limit_reply(response: Any) -> None:
    """Replaces the stream of an httpx response by one that is decompressed and raises `ReplyLimitError`."""
    encoding = response.headers.pop("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", *WINDOW_BITS):
        raise ReplyLimitError(f"the reply has content-encoding {encoding!r}; only gzip and deflate are supported")
    kind = response.headers.get("content-type", "").partition(";")[0]
    response.headers.pop("content-length", None)
    response.stream = _stream_class(_library_base(response.stream))(response.stream, encoding, kind)


def _library_base(stream: object) -> Hashable:
    """Returns the class `AsyncByteStream` of the library that the stream belongs to: httpx or httpx2."""
    return next(parent for parent in type(stream).__mro__ if parent.__name__ == "AsyncByteStream")


@cache
def _stream_class(base: type) -> Callable[..., Any]:
    return type("LimitedStream", (_LimitedStream, base), {})


class _LimitedStream:
    def __init__(self, inner: Any, encoding: str, kind: str) -> None:
        self._inner = inner
        self._encoding = encoding
        self._has_lines = kind == "text/event-stream"
        self._max_bytes = MAX_STREAM_BYTES if self._has_lines or kind == BINARY_STREAM else MAX_REPLY_BYTES

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = total = line = 0
        decompress = _decompressor(self._encoding)
        async for chunk in self._inner:
            received += len(chunk)
            check_size(received, self._max_bytes)
            for piece in decompress(chunk):
                if self._has_lines and not total:
                    piece = piece.removeprefix(BOM_UTF8)  # noqa: PLW2901
                total += len(piece)
                check_size(total, self._max_bytes)
                end = piece.rfind(b"\n")
                line = line + len(piece) if end < 0 else len(piece) - end - 1
                if self._has_lines:
                    check_size(line, MAX_REPLY_BYTES)
                yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


def check_size(size: int, limit: int) -> None:
    """Raises `ReplyLimitError` if `size` is above the limit."""
    if size > limit:
        raise ReplyLimitError(f"the reply is larger than {limit:,} bytes")


def _decompressor(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    if encoding == "identity":
        return lambda chunk: iter((chunk,))
    state = zlib.decompressobj(WINDOW_BITS[encoding])

    def decompress(chunk: bytes) -> Iterator[bytes]:
        try:
            while piece := state.decompress(chunk, PIECE_BYTES):
                yield piece
                chunk = state.unconsumed_tail
        except zlib.error as error:
            raise ReplyLimitError(f"the reply can't be decompressed: {error}") from None

    return decompress
