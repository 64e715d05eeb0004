"""Fences around text that models wrote, so that no reply can pass for anything but data. Pure.

A fence carries a mark computed, under a key that is random for each run, from everything it encloses. A
reply can't contain its own mark: it would have to contain a keyed hash of itself. On top of that, anything
in a reply that looks like one of our tags is escaped, so that a careless model is not fooled either.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import Literal, get_args

Tag = Literal["error", "passage", "reply", "subtask", "task"]
"""What a fence can be around."""

MARK = 'mark="[0-9a-f]{16}"'
"""The pattern of a fence's mark in its tags."""

_MARK_IN_JSON = re.compile(MARK.replace('"', r'\\"'))
# Possessive, since a reply may hold thousands of spaces after a `<` and must not make us try every split of them.
_TAGS = re.compile(rf"<(?=\s*+/?+\s*+(?:{'|'.join(get_args(Tag))})\b)", re.IGNORECASE)


def new_key() -> str:
    """A random key for the fences of one run, as hex."""
    return secrets.token_hex(16)


def mark(key: str, contents: Sequence[str]) -> str:
    """The mark of a fence around `contents`: 16 hex digits of a keyed BLAKE2b."""
    digest = hashlib.blake2b(key=key.encode(), digest_size=8)
    for content in contents:
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content.encode(errors="surrogatepass"))
    return digest.hexdigest()


def fenced(tag: Tag, content: str, mark: str, **attributes: int | str) -> str:
    """`content`, escaped, between an opening and a closing tag that bear `mark`."""
    named = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f'<{tag}{named} mark="{mark}">\n{escaped(content)}\n</{tag} mark="{mark}">'


def without_marks(json: str) -> str:
    """`json` without the marks of fences in its strings: they are drawn anew for each run."""
    return _MARK_IN_JSON.sub("", json)


def escaped(content: str) -> str:
    """`content` with the `<` of anything that looks like one of our tags written as `&lt;`."""
    return _TAGS.sub("&lt;", content)
