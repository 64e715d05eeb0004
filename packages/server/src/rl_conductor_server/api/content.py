"""Content that several APIs share: images and documents by URL or in base64, tool results, and JSON schemas."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable
from typing import Any

from rl_conductor.types import ContentPart, FilePart, ImageDetail, ImagePart, JsonFormat, Message, TextPart
from rl_conductor.types.messages import labelled_text
from rl_conductor_server.errors import invalid_request

FILES_BY_CONTENT = "is not supported, because workers of several vendors share no files; send the content instead"
DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+);base64,(?P<data>[A-Za-z0-9+/=\s]+)")


def image_part(url: str, *, param: str, detail: ImageDetail | None = None) -> ImagePart:
    """Converts an `https:` or `data:` URL to an image. Raises `ApiError` for any other value of `param`.

    The detail `original` is left out: OpenAI's models from GPT-5.5 read images so by default, and others reject it.
    """
    image_detail = detail if detail in ("low", "high") else None
    if url.startswith("https://"):
        return ImagePart(url=url, detail=image_detail)
    media_type, data = _decode(url, "an image must be a data:TYPE;base64,... address or an https: one", param)
    return ImagePart(media_type=media_type, data=data, detail=image_detail)


def file_part(url: str, *, name: str, param: str) -> ContentPart:
    """Converts a `data:` URL to a document. Raises `ApiError` for any other value of `param`."""
    media_type, data = _decode(url, "a document must be a data:TYPE;base64,... address", param)
    return document_part(media_type, data, name=name, param=param)


def document_part(media_type: str, data: str, *, name: str, param: str) -> ContentPart:
    """Converts a document in base64: plain text to a text part, which every model reads, and others to a file.

    Raises:
        ApiError: it is not base64 of UTF-8 text, although its type says so.
    """
    if not media_type.startswith("text/"):
        return FilePart(media_type=media_type, name=name, data=data)
    try:
        return labelled_text("document", b64decode(data).decode(), name)
    except ValueError:
        raise invalid_request(
            f"{param} must be base64 of UTF-8 text, as its type {media_type} says", param=param
        ) from None


def tool_message(call_id: str, content: str | Iterable[ContentPart], *, is_error: bool = False) -> Message:
    """Converts the result of a tool call: its text, then its images and documents."""
    parts = (TextPart(text=content),) if isinstance(content, str) else tuple(content)
    text = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    message = Message.tool(call_id, text, is_error=is_error)
    attachments = tuple(part for part in parts if not isinstance(part, TextPart))
    return message.model_copy(update={"content": message.content + attachments})


def json_format(
    name: str, schema: dict[str, Any] | None, description: str | None, *, strict: bool | None
) -> JsonFormat:
    """Creates a JSON response format; the description becomes part of the schema."""
    if schema is not None and description:
        schema = {"description": description} | schema
    return JsonFormat(name=name, json_schema=schema, strict=strict)


def _decode(url: str, error: str, param: str) -> tuple[str, str]:
    match = DATA_URL.fullmatch(url)
    if match is None:
        raise invalid_request(error, param=param)
    return match["type"], match["data"]
