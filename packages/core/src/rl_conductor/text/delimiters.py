"""Encloses text from models in tags that the text can't forge, as a defence against prompt injection. Pure.

Each pair of tags carries a nonce: a hash of the enclosed text, keyed with a secret key per conversation. A reply can't
contain its own nonce, since it would have to contain a keyed hash of itself. In addition, anything in the text that
looks like one of these tags is escaped.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import Literal, get_args

Tag = Literal["error", "passage", "reply", "subtask", "task"]
"""The kinds of enclosed text."""

NONCE_ATTR = 'mark="[0-9a-f]{16}"'
"""The regular expression of the attribute that carries the nonce."""

_SECRET = secrets.token_bytes(32)
_NONCE_IN_JSON = re.compile(NONCE_ATTR.replace('"', r'\\"'))
# Possessive quantifiers, so that thousands of spaces after a `<` don't cause quadratic backtracking.
_TAGS = re.compile(rf"<(?=\s*+/?+\s*+(?:{'|'.join(get_args(Tag))})\b)", re.IGNORECASE)


def new_delimiter_key() -> str:
    """Generates a random key, as hex, for texts that belong to no conversation."""
    return secrets.token_hex(16)


def conversation_key(opening: Sequence[str]) -> str:
    """Derives the key of all runs of one conversation from its opening texts and a secret of this process, as hex.

    Equal texts get equal tags in every turn, so that prompts of one conversation begin alike and vendors can cache
    them. Without the secret, nobody can compute the key, whatever the opening says.
    """
    return _keyed_hash(_SECRET, opening, size=16)


def compute_nonce(key: str, contents: Sequence[str]) -> str:
    """Computes the nonce of tags around `contents`: 16 hex digits of a keyed BLAKE2b hash."""
    return _keyed_hash(key.encode(), contents, size=8)


def _keyed_hash(key: bytes, contents: Sequence[str], *, size: int) -> str:
    lengths = ",".join([str(len(text)) for text in contents])  # so that texts divided in another way differ
    data = f"{lengths}:{''.join(contents)}".encode(errors="surrogatepass")
    return hashlib.blake2b(data, key=key, digest_size=size).hexdigest()


def delimit(tag: Tag, content: str, nonce: str, **attributes: int | str) -> str:
    """Escapes `content` and encloses it in tags that carry `nonce`."""
    rendered = "".join([f' {name}="{value}"' for name, value in attributes.items()])
    return f'<{tag}{rendered} mark="{nonce}">\n{escape_tags(content)}\n</{tag} mark="{nonce}">'


def strip_nonces(json: str) -> str:
    """Removes the nonces from the strings in `json`, since they differ from run to run."""
    return _NONCE_IN_JSON.sub("", json)


def escape_tags(content: str) -> str:
    """Replaces the `<` of anything that looks like one of the tags with `&lt;`."""
    return _TAGS.sub("&lt;", content)
