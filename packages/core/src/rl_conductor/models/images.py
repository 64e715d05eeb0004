"""Images of a conversation, decoded for an engine in this process. It needs pillow."""

from __future__ import annotations

import base64
from io import BytesIO

from PIL import Image

from rl_conductor.errors import BadRequestError
from rl_conductor.types import ImagePart, Request

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Pillow knows others, for some of which it starts programs."""


def images_of(request: Request, *, model: str) -> list[Image.Image]:
    """The images of the conversation, in order.

    Raises:
        BadRequestError: one is given by address, or can't be decoded.
    """
    parts = [part for message in request.messages for part in message.content if isinstance(part, ImagePart)]
    return [_decoded(part, model) for part in parts]


def _decoded(part: ImagePart, model: str) -> Image.Image:
    if part.data is None:
        raise BadRequestError(f"{model} fetches no image from {part.url!r}: give its content in `data`", model=model)
    try:
        with Image.open(BytesIO(base64.b64decode(part.data)), formats=FORMATS) as image:
            return image.convert("RGB")
    except Exception as broken:  # pillow raises many kinds for what is no image, or too large a one
        raise BadRequestError(f"{model}: an image can't be decoded: {broken}", model=model) from broken
