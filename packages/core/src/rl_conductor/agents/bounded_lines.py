"""An encoding that bounds the length of lines, for the stdout of MCP servers.

The SDK joins a line anew with each piece that comes, so a line without end takes quadratic time and all of the memory.
It decodes with any encoding that Python knows. This one is UTF-8, but ends a line that is too long and drops its rest,
and replaces invalid bytes, for which the SDK would stop to read.
"""

from __future__ import annotations

import codecs
from typing import Any

from rl_conductor.models.http.reply_limit import MAX_REPLY_BYTES

ENCODING = "rl_conductor_bounded_lines"
MAX_LINE_CHARS = MAX_REPLY_BYTES
"""Maximum length of a line, which is one message."""


class BoundedLineDecoder(codecs.IncrementalDecoder):
    """Decodes UTF-8 in pieces; of each line, at most `MAX_LINE_CHARS`."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._room = MAX_LINE_CHARS
        self._is_cut = False
        """Whether the line was ended, so that what comes until its own end is dropped."""

    def decode(self, data: Any, final: bool = False) -> str:
        """Returns the text of a piece."""
        pieces: list[str] = []
        for index, part in enumerate(self._utf8.decode(data, final).split("\n")):
            if index:
                pieces.append("" if self._is_cut else "\n")
                self._room, self._is_cut = MAX_LINE_CHARS, False
            if not self._is_cut:
                pieces.append(part[: self._room])
                self._is_cut = len(part) > self._room
                pieces.append("\n" if self._is_cut else "")
                self._room -= len(part)
        return "".join(pieces)


def _find_codec(name: str) -> codecs.CodecInfo | None:
    if name != ENCODING:
        return None
    return codecs.CodecInfo(
        codecs.utf_8_encode, codecs.utf_8_decode, incrementaldecoder=BoundedLineDecoder, name=ENCODING
    )


codecs.register(_find_codec)
