"""The maximum tokens of a PDF, by its pages and its text. Pure.

Anthropic and OpenAI count the text and an image of each page, Google only the image. This is no PDF reader: it looks
for page objects and for the strings in streams, as most programs write them. A file whose pages share objects, or that
is made to deceive, may have more tokens. The work is limited, so that no file takes long.
"""

from __future__ import annotations

import re
import zlib
from base64 import a85decode, b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator

from rl_conductor.workflow.image_tokens import TOKENS_PER_SCALED_IMAGE

MAX_PDF_TOKENS = 2_000_000
"""More than the context of any vendor's model that reads PDFs: the maximum of a file that can't be looked through."""
MAX_TEXT_BYTES = 2**22
"""The size of decompressed streams that are looked through. A file of 8 KB may contain so much, which takes 0.1 s."""
MAX_ASCII85_BYTES = 2**17
"""The size of streams in ASCII85, which take Python long to decode; ReportLab writes such."""
MAX_STREAMS = 20_000
"""The number of streams that are looked through."""
HEADER_BYTES = 1_024
"""The part of a file in which readers look for `%PDF`, and the part before a stream in which its dictionary is."""

PAGE = re.compile(rb"/Type\s*+/Page(?![A-Za-z])")
STREAM = re.compile(rb"stream\r?\n")
FILTER = re.compile(rb"/Filter\s*+(\[[^\]]*+\]|/\w++)")
NAME = re.compile(rb"/\w++")
IMAGE = re.compile(rb"/Subtype\s*+/Image\b")
SHOWN_TEXT = re.compile(rb"[)>\]]\s*+(?:T[jJ]|['\"]\s)")
"""The end of a string that is shown on a page; fonts and other data have none."""
STRING = re.compile(rb"\([^()\\]*+(?:\\.[^()\\]*+)*+\)|<[0-9A-Fa-f\s]*+>", re.DOTALL)


class _UnreadableError(Exception):
    """The file is encrypted, or compressed in another way, or too large."""


def max_pdf_tokens(data: str, *, unknown: int = MAX_PDF_TOKENS, room: int = MAX_TEXT_BYTES) -> int | None:
    """Returns the maximum tokens of a PDF in base64; `None` if it is no PDF, which vendors refuse.

    Args:
        data: the file.
        unknown: the tokens of a PDF that can't be looked through.
        room: the size of decompressed streams that are looked through, in bytes.
    """
    try:
        pdf = b64decode(data)
    except Base64Error:
        return None
    if b"%PDF" not in pdf[:HEADER_BYTES]:
        return None
    pages = text_bytes = 0
    try:
        for objects, content in _parts(pdf, room):
            pages += len(PAGE.findall(objects)) + len(PAGE.findall(content))
            if SHOWN_TEXT.search(content):
                text_bytes += sum(len(string) - 2 for string in STRING.findall(content))
    except _UnreadableError:
        return unknown
    return min(max(pages, 1) * TOKENS_PER_SCALED_IMAGE + text_bytes, MAX_PDF_TOKENS)


def _parts(pdf: bytes, room: int) -> Iterator[tuple[bytes, bytes]]:
    """Splits a PDF into pieces between streams, each with the decompressed content of the stream after it."""
    position = 0
    for _ in range(MAX_STREAMS):
        start = STREAM.search(pdf, position)
        objects = pdf[position : start.start() if start else len(pdf)]
        if b"/Encrypt" in objects:
            raise _UnreadableError
        if start is None:
            yield objects, b""
            return
        end = pdf.find(b"endstream", start.end())
        end = len(pdf) if end < 0 else end
        dictionary = objects[objects.rfind(b"obj") :][-HEADER_BYTES:]
        stream = b"" if IMAGE.search(dictionary) else pdf[start.end() : end]
        content = _content(stream, dictionary, room) if stream else b""
        room -= max(len(stream), len(content))
        yield objects, content
        position = end + len(b"endstream")
    raise _UnreadableError


def _content(stream: bytes, dictionary: bytes, room: int) -> bytes:
    content = stream
    for name in _filters(dictionary):
        try:
            content = _decode(content, name, room)
        except (ValueError, zlib.error):
            raise _UnreadableError from None
    if len(content) > room:
        raise _UnreadableError
    return content


def _filters(dictionary: bytes) -> list[bytes]:
    entry = FILTER.search(dictionary)
    return NAME.findall(entry[1]) if entry else []


def _decode(content: bytes, name: bytes, room: int) -> bytes:
    if name == b"/FlateDecode":
        inflation = zlib.decompressobj()
        inflated = inflation.decompress(content, room + 1)
        if inflation.unconsumed_tail:
            raise _UnreadableError
        return inflated
    if name == b"/ASCII85Decode" and len(content) <= MAX_ASCII85_BYTES:
        return a85decode(content.strip(), adobe=True)
    raise _UnreadableError
