"""Builds the request of a command from its question, system prompt, schema and attached files."""

from __future__ import annotations

import base64
import json
import mimetypes
import sys
from pathlib import Path

from rl_conductor._internal.io import read_text, reading_errors
from rl_conductor.cli.streams import read_stdin, read_stdin_bytes
from rl_conductor.errors import ConfigError
from rl_conductor.types import ContentPart, FilePart, ImagePart, JsonFormat, Message, Request, TextPart

KINDS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF-": "application/pdf",
}
"""Media types by the first bytes of their files."""


def build_request(
    question: str | None, files: list[str] | None = None, *, system: str | None = None, schema: Path | None = None
) -> Request:
    """Builds a request from the question, read from stdin if omitted, and the attached files.

    Raises:
        ConfigError: there is no question, or a file can't be read or sent.
    """
    if question is None and sys.stdin.isatty():
        raise ConfigError(
            "no question was given: pass it as an argument, as in rl-conductor ask 'Why is the sky blue?'"
        )
    if question in (None, "-") and "-" in (files or ()):
        raise ConfigError("stdin can't be both the question and a file; pass the question as an argument")
    text = read_stdin() if question in (None, "-") else str(question)
    if not text.strip():
        raise ConfigError("the question is empty; write a question")
    message = Message.user(text, *(_part(name) for name in files or ()))
    return Request(messages=(*system_messages(system), message), response_format=_answer_format(schema))


def system_messages(system: str | None) -> tuple[Message, ...]:
    """Returns the system message, if there is one."""
    return (Message.system(system),) if system else ()


def _answer_format(schema: Path | None) -> JsonFormat | None:
    if schema is None:
        return None
    text = read_text(schema)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{str(schema)!r} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f'{str(schema)!r} is no JSON schema: it must be an object, such as {{"type": "object"}}')
    return JsonFormat(json_schema=content)


def _part(name: str) -> ContentPart:
    if name == "-":
        content = read_stdin_bytes()
        return _attachment("stdin", content, _kind_of(content))
    path = Path(name)
    with reading_errors(path):
        content = path.read_bytes()
    return _attachment(path.name, content, mimetypes.guess_type(path.name)[0] or "")


def _kind_of(content: bytes) -> str:
    """Returns the media type of an image or a PDF by its first bytes; empty for anything else."""
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in KINDS.items() if content.startswith(start)), "")


def _attachment(name: str, content: bytes, kind: str) -> ContentPart:
    if kind.startswith("image/") and kind != "image/svg+xml":
        return ImagePart(media_type=kind, data=base64.b64encode(content).decode())
    if kind == "application/pdf":
        return FilePart(name=name, data=base64.b64encode(content).decode())
    try:
        return TextPart(text=f"\n\n[{name}]\n{content.decode('utf-8-sig')}")
    except UnicodeDecodeError:
        raise ConfigError(f"can't send {name!r}: it is not an image, a PDF or UTF-8 text") from None
