"""Decodes the images of a conversation for an in-process engine. Requires pillow."""

from __future__ import annotations

import base64
from io import BytesIO

from PIL import Image

from rl_conductor.errors import BadRequestError
from rl_conductor.types import ImagePart, Request

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Accepted formats; pillow supports others, some of which start external programs."""


def decode_images(request: Request, *, model: str) -> list[Image.Image]:
    """Decodes all images of the conversation, in order.

    Raises:
        BadRequestError: an image is given by URL, or can't be decoded.
    """
    parts = [part for message in request.messages for part in message.content if isinstance(part, ImagePart)]
    return [_decode(part, model) for part in parts]


def _decode(part: ImagePart, model: str) -> Image.Image:
    if part.data is None:
        raise BadRequestError(
            f"{model} can't fetch images by URL ({part.url!r}): pass the content in `data`", model=model
        )
    try:
        with Image.open(BytesIO(base64.b64decode(part.data)), formats=FORMATS) as image:
            return image.convert("RGB")
    except Exception as error:  # pillow raises many types for invalid or oversized images
        raise BadRequestError(f"{model}: an image can't be decoded: {error}", model=model) from error
