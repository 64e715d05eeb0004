"""The reservation for a PDF is more than vendors count for its pages and its text."""

from __future__ import annotations

import zlib
from base64 import a85encode, b64encode
from time import process_time

import pytest

from rl_conductor.types import FilePart, Message, Request
from rl_conductor.workflow.image_tokens import TOKENS_PER_SCALED_IMAGE
from rl_conductor.workflow.pdf_tokens import (
    MAX_ASCII85_BYTES,
    MAX_PDF_TOKENS,
    MAX_STREAMS,
    MAX_TEXT_BYTES,
    max_pdf_tokens,
)
from rl_conductor.workflow.request_tokens import estimate_input_tokens, upper_bound

PAGE = b"<< /Type /Page /Parent 1 0 R /Contents 9 0 R >>\n"
PAGES = b"<< /Type /Pages /Kids [2 0 R] /Count 1 >>\n"
FLATE = b"/Filter /FlateDecode"


def stream(content: bytes, dictionary: bytes = b"") -> bytes:
    return b"9 0 obj\n<< /Length %d %b >>\nstream\n%b\nendstream\nendobj\n" % (len(content), dictionary, content)


def flate(content: bytes, dictionary: bytes = FLATE) -> bytes:
    return stream(zlib.compress(content), dictionary)


def tokens(*parts: bytes) -> int | None:
    return max_pdf_tokens(b64encode(b"%PDF-1.7\n" + b"".join(parts)).decode())


def shown(text: bytes) -> bytes:
    return b"BT /F1 9 Tf [(%b)-20(!)] TJ ET" % text


def test_a_compact_text_pdf_counts_the_text_and_an_image_of_each_page() -> None:
    text = b"word " * 600
    pages = [part for _ in range(10) for part in (PAGE, flate(shown(text)))]
    pdf = b64encode(b"%PDF-1.7\n" + PAGES + b"".join(pages)).decode()
    request = Request(messages=(Message(role="user", content=(FilePart(data=pdf),)),))

    assert max_pdf_tokens(pdf) == 10 * (TOKENS_PER_SCALED_IMAGE + len(text) + 1)
    # Anthropic counts 1,500 to 3,000 for the text of a page.
    assert upper_bound(request, None).input_tokens > 10 * 3_000
    assert len(pdf) / 4 < 1_000  # which is no bound


def test_pages_in_compressed_object_streams_count() -> None:
    assert tokens(flate(PAGE * 50, b"/Type /ObjStm " + FLATE)) == 50 * TOKENS_PER_SCALED_IMAGE


def test_a_file_without_page_objects_counts_as_one_page() -> None:
    assert tokens(PAGES) == TOKENS_PER_SCALED_IMAGE


@pytest.mark.parametrize(
    ("content", "text_bytes"),
    [
        (b"(a\\)b) Tj", 4),
        (b"<00480069> Tj", 8),
        (b"(a) '\n", 1),
        (b"0 0 612 792 re f", 0),
        (b"\x00\x01\x00\x00 font (data)", 0),
    ],
    ids=str,
)
def test_the_strings_that_a_page_shows_are_its_text(content: bytes, text_bytes: int) -> None:
    assert tokens(PAGE, flate(content)) == TOKENS_PER_SCALED_IMAGE + text_bytes
    assert tokens(PAGE, stream(content)) == TOKENS_PER_SCALED_IMAGE + text_bytes


@pytest.mark.parametrize("dictionary", [FLATE + b"\n/Length1 9", b"/Filter [ /FlateDecode ]", b"/Filter[/FlateDecode]"])
def test_the_text_of_compressed_streams_counts(dictionary: bytes) -> None:
    assert tokens(PAGE, flate(b"(text) Tj", dictionary)) == TOKENS_PER_SCALED_IMAGE + 4


def test_the_text_of_reportlabs_streams_counts() -> None:
    content = a85encode(zlib.compress(b"(text) Tj"), adobe=True).removeprefix(b"<~")
    assert tokens(PAGE, stream(content, b"/Filter [ /ASCII85Decode /FlateDecode ]")) == TOKENS_PER_SCALED_IMAGE + 4


@pytest.mark.parametrize("dictionary", [b"/Subtype /Image /Filter /DCTDecode", b"/Subtype/Image " + FLATE])
def test_images_are_not_decompressed(dictionary: bytes) -> None:
    assert tokens(PAGE, stream(b"no flate", dictionary)) == TOKENS_PER_SCALED_IMAGE


@pytest.mark.parametrize(
    "part",
    [
        b"trailer << /Encrypt 5 0 R >>",
        stream(b"no flate", FLATE),
        stream(b"text", b"/Filter /LZWDecode"),
        stream(b"text", b"/Filter [/ASCII85Decode /FlateDecode]"),
        stream(a85encode(b"a" * MAX_ASCII85_BYTES, adobe=True), b"/Filter /ASCII85Decode"),
        flate(b" " * (MAX_TEXT_BYTES + 1)),
        flate(b" " * (2 * MAX_TEXT_BYTES)),
        b"stream\nendstream\n" * (MAX_STREAMS + 1),
        stream(b" " * (MAX_TEXT_BYTES + 1)),
        PAGE * 1_000,
    ],
    ids=[
        *("encrypted", "damaged", "other filter", "damaged ASCII85", "large ASCII85", "large text", "bomb", "streams"),
        *("large", "many pages"),
    ],
)
def test_a_file_that_can_not_be_looked_through_counts_as_the_largest_context(part: bytes) -> None:
    assert tokens(part) == MAX_PDF_TOKENS


def test_a_file_that_can_not_be_looked_through_is_estimated_by_its_size() -> None:
    pdf = b64encode(b"%PDF-1.7\n/Encrypt 5 0 R" + bytes(4_000)).decode()
    request = Request(messages=(Message(role="user", content=(FilePart(data=pdf),)),))
    assert estimate_input_tokens(request) < len(pdf) / 4 + 100
    assert upper_bound(request, None).input_tokens > MAX_PDF_TOKENS


def test_many_files_share_what_is_looked_through() -> None:
    content = shown(b"word") + b" " * (MAX_TEXT_BYTES // 2)
    pdf = FilePart(data=b64encode(b"%PDF-1.7\n" + flate(content)).decode())
    few, many = (Request(messages=(Message(role="user", content=(pdf,) * count),)) for count in (2, 40))
    assert upper_bound(few, None).input_tokens < 2 * 5_000
    assert upper_bound(many, None).input_tokens > 40 * MAX_PDF_TOKENS


@pytest.mark.parametrize("data", ["AAAA", "a", ""])
def test_what_is_no_pdf_has_no_maximum(data: str) -> None:
    assert max_pdf_tokens(data) is None


@pytest.mark.timed
@pytest.mark.parametrize(
    "part",
    [
        b"stream\nendstream\n" * 500_000,
        b"stream\n" * 1_000_000,
        flate(b"(" * (MAX_TEXT_BYTES - 10) + b") Tj"),
        flate(b"<0 " * (MAX_TEXT_BYTES // 3 - 10) + b") Tj"),
        flate(b") " + b" " * (MAX_TEXT_BYTES - 10)),
        flate(b"a" * 2**28),
        stream(a85encode(zlib.compress(b"") + b"a" * 10**5, adobe=True), b"/Filter [/ASCII85Decode /FlateDecode]")
        * 200,
    ],
    ids=["empty streams", "open streams", "open strings", "open hex strings", "spaces", "bomb", "ASCII85"],
)
def test_a_hostile_file_takes_no_long_time(part: bytes) -> None:
    start = process_time()
    tokens(part)
    assert process_time() - start < 2  # each takes less than 0.4 s
