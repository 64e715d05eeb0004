"""Converts vendors' own content blocks to LangChain's standard ones, as far as LangChain does not do it. Pure.

LangChain passes blocks of OpenAI's Responses API, of Google's package and of Anthropic on to their vendor. Workers of
other vendors need them in the standard form.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from mimetypes import guess_type
from typing import Any

from rl_conductor.integration import labelled_text

Block = dict[str, Any]

DATA_URL = re.compile("data:(?P<type>[^,;]*);base64,")


def standard_block(block: Block) -> Block:
    """Returns the standard block with the content of `block`, or `block` itself if there is none.

    The content of a data URL becomes base64.
    """
    return _with_content_of_url(_standard_form(block))


def block_type(block: Mapping[str, Any]) -> str:
    """Returns the type of a block, as its vendor or LangChain names it."""
    own = block.get("value") if block["type"] == "non_standard" else block
    return str(own.get("type") if isinstance(own, Mapping) else block["type"])


def _standard_form(block: Block) -> Block:
    form: Block | None = None
    match block.get("value") if block.get("type") == "non_standard" else block:
        case {"type": "input_text" | "output_text", "text": str(text)}:
            form = {"type": "text", "text": text}
        case {"type": "input_image" | "image_url", "image_url": str(url), **other}:
            form = {"type": "image", "url": url, "detail": other.get("detail")}
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            form = {"type": "image", "url": url}
        case {"type": "image", "source": {"type": "base64", "data": str(data), "media_type": str(media_type)}}:
            form = {"type": "image", "base64": data, "mime_type": media_type}
        case {"type": "input_file", "file_data": str(data), **other}:
            form = _file(data, other.get("filename"))
        case {"type": "media", "data": str() | bytes() as data, "mime_type": str(media_type)}:
            form = _media(data, media_type)
        case {"type": "search_result", "content": content, **other}:
            form = _search_result(_text(content), other.get("title"), other.get("source"))
        case {"type": "document", "source": {"type": "content", "content": content}, **other}:
            form = _document(_text(content), other)
    return block if form is None else form


def _with_content_of_url(block: Block) -> Block:
    match = DATA_URL.match(str(block.get("url")))
    if match is None:
        return block
    content = {"base64": match.string[match.end() :], "mime_type": match["type"]}
    return {name: value for name, value in block.items() if name != "url"} | content


def _file(data: str, name: Any) -> Block:
    """Returns a file of OpenAI's Responses API, whose `file_data` is a data URL or base64 alone."""
    file = {"type": "file", "filename": name}
    if data.startswith("data:"):
        return {**file, "url": data}
    return {**file, "base64": data, "mime_type": guess_type(str(name))[0] or "application/pdf"}


def _media(data: str | bytes, media_type: str) -> Block:
    """Returns the content of a block of Google's package: an image, a recording or a file."""
    family = media_type.partition("/")[0]
    kind = family if family in ("image", "audio", "video") else "file"
    return {
        "type": kind,
        "base64": data if isinstance(data, str) else b64encode(data).decode(),
        "mime_type": media_type,
    }


def _search_result(text: str | None, title: Any, source: Any) -> Block | None:
    """Returns a search result of Anthropic as text."""
    title, source = (value if isinstance(value, str) else None for value in (title, source))
    if text is None:
        return None
    return {"type": "text", "text": labelled_text("search result", text, title, Source=source).text}


def _document(text: str | None, other: Mapping[Any, Any]) -> Block | None:
    """Returns a document of Anthropic that consists of texts."""
    return None if text is None else {**other, "type": "text-plain", "text": text}


def _text(content: Any) -> str | None:
    """Returns the text of Anthropic's content blocks; `None` if there are others than text."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [None]
    texts = [block.get("text") if isinstance(block, Mapping) else None for block in blocks]
    strings = [text for text in texts if isinstance(text, str)]
    return "\n".join(strings) if len(strings) == len(texts) else None
