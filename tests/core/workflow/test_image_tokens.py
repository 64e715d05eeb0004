from __future__ import annotations

import struct
from base64 import b64encode

import pytest

from rl_conductor.types import ImageDetail, ImagePart
from rl_conductor.workflow.image_tokens import (
    TOKENS_PER_SCALED_IMAGE,
    TOKENS_PER_WHOLE_IMAGE,
    image_size,
    max_image_tokens,
)


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", width, height)


def jpeg(width: int, height: int, metadata: bytes = b"") -> bytes:
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(metadata)) + metadata
    return b"\xff\xd8" + segment + b"\xff\xc2\x00\x11\x08" + struct.pack(">HH", height, width)


def webp(kind: bytes, rest: bytes) -> bytes:
    return b"RIFF\x00\x00\x00\x00WEBP" + kind + b"\x00\x00\x00\x00" + rest


def encoded(data: bytes) -> str:
    return b64encode(data).decode()


@pytest.mark.parametrize(
    "image",
    [
        png(640, 480),
        b"GIF89a" + struct.pack("<HH", 640, 480),
        jpeg(640, 480),
        jpeg(640, 480, jpeg(160, 120)),  # a preview
        webp(b"VP8X", b"\x00\x00\x00\x00" + (639).to_bytes(3, "little") + (479).to_bytes(3, "little")),
        webp(b"VP8L", b"\x2f" + struct.pack("<I", 639 | 479 << 14)),
        webp(b"VP8 ", b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", 640, 480)),
    ],
)
def test_the_size_of_an_image_is_read_from_its_header(image: bytes) -> None:
    assert image_size(encoded(image)) == (640, 480)
    assert image_size(encoded(image + b"\x00" * 2**19)) == (640, 480)


@pytest.mark.parametrize(
    "data",
    ["", "A", *(encoded(data) for data in (b"BM", png(1, 1)[:20], b"\xff\xd8\xff\xe0", b"\xff\xd8ab"))],
)
def test_the_size_of_other_data_is_unknown(data: str) -> None:
    assert image_size(data) is None


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (ImagePart(data=encoded(png(640, 480))), TOKENS_PER_SCALED_IMAGE),
        (ImagePart(data=encoded(png(3200, 3200))), 12_000),
        (ImagePart(data=encoded(png(3201, 3200))), 12_120),
        (ImagePart(data=encoded(png(60_000, 60_000))), TOKENS_PER_WHOLE_IMAGE),
        (ImagePart(data=encoded(b"BM")), TOKENS_PER_WHOLE_IMAGE),
        (ImagePart(url="https://example.com/a.png"), TOKENS_PER_WHOLE_IMAGE),
    ],
)
def test_an_image_that_may_be_read_whole_counts_by_its_size(part: ImagePart, tokens: int) -> None:
    details: tuple[ImageDetail | None, ...] = (None, "auto", "original")
    assert [max_image_tokens(part.model_copy(update={"detail": detail})) for detail in details] == [tokens] * 3


@pytest.mark.parametrize("detail", ["low", "high"])
def test_an_image_that_is_scaled_down_counts_the_same_at_any_size(detail: ImageDetail) -> None:
    for part in (ImagePart(url="https://example.com/a.png"), ImagePart(data=encoded(png(9000, 9000)))):
        assert max_image_tokens(part.model_copy(update={"detail": detail})) == TOKENS_PER_SCALED_IMAGE
