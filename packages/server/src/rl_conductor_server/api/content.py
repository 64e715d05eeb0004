"""What the protocols send alike: images and documents by an address or in base64, results of tools, and schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rl_conductor.types import ContentPart, FilePart, ImagePart, JsonFormat, Message, TextPart
from rl_conductor_server.errors import refused

DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+);base64,(?P<data>[A-Za-z0-9+/=\s]+)")


def image(url: str, *, param: str) -> ImagePart:
    """An image at an `https:` address or in a `data:` one; any other is refused as the value of `param`."""
    if url.startswith("https://"):
        return ImagePart(url=url)
    media_type, data = _data(url, "an image must be a data:TYPE;base64,... address or an https: one", param)
    return ImagePart(media_type=media_type, data=data)


def document(url: str, *, name: str, param: str) -> FilePart:
    """A document in a `data:` address; any other is refused as the value of `param`."""
    media_type, data = _data(url, "a document must be a data:TYPE;base64,... address", param)
    return FilePart(media_type=media_type, name=name, data=data)


def tool_result(call_id: str, content: str | Iterable[ContentPart], *, before: str = "") -> Message:
    """What a tool gave back: its text, with `before` ahead of it, and then its images and documents."""
    parts = (TextPart(text=content),) if isinstance(content, str) else tuple(content)
    text = before + "\n".join(part.text for part in parts if isinstance(part, TextPart))
    said = Message.tool(call_id, text)
    return said.model_copy(update={"content": said.content + tuple(p for p in parts if not isinstance(p, TextPart))})


def json_format(name: str, schema: dict[str, Any] | None, description: str | None) -> JsonFormat:
    """JSON of a schema, which carries its own description."""
    described = {"description": description} if description and schema is not None else {}
    return JsonFormat(name=name, json_schema=None if schema is None else described | schema)


def _data(url: str, wanted: str, param: str) -> tuple[str, str]:
    found = DATA_URL.fullmatch(url)
    if found is None:
        raise refused(wanted, param=param)
    return found["type"], found["data"]
