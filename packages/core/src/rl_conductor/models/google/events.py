"""Reads the events of a streamed reply from the pieces of its body, without I/O.

Google reports an error in the middle of a stream as JSON without `data:`, which readers of server-sent events skip.
"""

from __future__ import annotations

from collections.abc import Iterator

from rl_conductor.models.http.reply_limit import MAX_REPLY_BYTES, check_size

BARE_JSON = b'{}[]" \t'
"""The first characters of lines of JSON; no field of an event starts with them."""


class EventReader:
    """Splits a stream into server-sent events; lines end in LF, CRLF or CR."""

    def __init__(self) -> None:
        self._open_line: list[bytes] = []
        """The pieces of a line without an end."""
        self._event: list[bytes] = []
        """The lines of the event so far, without `data:`."""
        self._event_size = 0
        self._follows_return = False
        """The last piece ended in CR, so that an LF at the start of the next one is part of the same line end."""

    def add(self, piece: bytes) -> Iterator[bytes]:
        """Adds a piece of the body, and yields the data of the events that it completes.

        Raises:
            ReplyLimitError: an event is too large.
        """
        if self._follows_return and piece.startswith(b"\n"):
            piece = piece[1:]
            self._follows_return = False
        if not piece:
            return
        self._follows_return = piece.endswith(b"\r")
        for line in piece.splitlines(keepends=True):
            self._open_line.append(line)
            if line.endswith((b"\n", b"\r")):
                complete, self._open_line = b"".join(self._open_line), []
                yield from self._add_line(complete.rstrip(b"\r\n"))

    def end(self) -> Iterator[bytes]:
        """Yields the data of the last event, if no empty line follows it."""
        yield from self._add_line(b"".join(self._open_line))
        yield from self._add_line(b"")

    def _add_line(self, line: bytes) -> Iterator[bytes]:
        if not line:
            data, self._event, self._event_size = b"\n".join(self._event), [], 0
            if data:
                yield data
            return
        self._event_size += len(line)
        check_size(self._event_size, MAX_REPLY_BYTES)
        if line.startswith(b"data:"):
            self._event.append(line[5:].removeprefix(b" "))
        elif line[0] in BARE_JSON:
            self._event.append(line)
