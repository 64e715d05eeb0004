"""The maximum tokens of an image, by its width and height. Pure.

The rules are those that vendors published until November 2026; they count patches of an image. OpenAI's models from
GPT-5.5 read images whole unless a request asks for less, and refuse those with too many patches. Other models, and the
same ones at the details `low` and `high`, scale large images down.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from binascii import Error as Base64Error

from rl_conductor.types import ImagePart

TOKENS_PER_SCALED_IMAGE = 4_784
"""More than any vendor counts for an image that is scaled down: the limit of Claude from 4.7. OpenAI's at the detail
`high` is 3,000, and Gemini's 2,240. GPT-4o mini is the exception, with up to 48,169."""
TOKENS_PER_WHOLE_IMAGE = 36_000
"""The limit of OpenAI's models for images that are not scaled down: 30,000 patches, 1.2 tokens each."""
PATCH = 32
"""Width and height of a patch, in pixels."""
HEADER_BYTES = 2**18
"""The part of an image in which its size is looked for; photos may have a preview and a color profile before it."""
JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""The markers of the segments of a JPEG that begin with its size."""


def max_image_tokens(part: ImagePart, *, unknown: int = TOKENS_PER_WHOLE_IMAGE) -> int:
    """Returns the maximum tokens of an image; `unknown` if its size is, as that of a URL, and it may be read whole."""
    if part.detail in ("low", "high"):
        return TOKENS_PER_SCALED_IMAGE
    size = None if part.data is None else image_size(part.data)
    if size is None:
        return unknown
    width, height = size
    patches = -(-width // PATCH) * -(-height // PATCH)
    return max(TOKENS_PER_SCALED_IMAGE, min(TOKENS_PER_WHOLE_IMAGE, -(-patches * 6 // 5)))


def image_size(data: str) -> tuple[int, int] | None:
    """Returns the width and height of a PNG, GIF, WebP or JPEG in base64; `None` if they can't be found."""
    try:
        header = b64decode(data[: HEADER_BYTES // 3 * 4])
        return _size_in(header)
    except (Base64Error, struct.error):
        return None


def _size_in(header: bytes) -> tuple[int, int] | None:
    if header.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height = struct.unpack_from(">II", header, 16)
    elif header.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack_from("<HH", header, 6)
    elif header[8:16] == b"WEBPVP8X":
        width, height = (1 + int.from_bytes(header[start : start + 3], "little") for start in (24, 27))
    elif header[8:16] == b"WEBPVP8L":
        (bits,) = struct.unpack_from("<I", header, 21)
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    elif header[8:16] == b"WEBPVP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", header, 26))
    elif header.startswith(b"\xff\xd8"):
        return _jpeg_size(header)
    else:
        return None
    return width, height


def _jpeg_size(header: bytes) -> tuple[int, int] | None:
    """Walks through the segments, one of which may contain a preview with a size of its own."""
    position = 2
    while header[position : position + 1] == b"\xff":
        marker, length = struct.unpack_from(">BH", header, position + 1)
        if marker in JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", header, position + 5)
            return width, height
        position += 2 + length
    return None
