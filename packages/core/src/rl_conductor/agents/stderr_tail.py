"""`StderrTail` keeps the end of a program's stderr; a file would grow without limit while the program runs."""

from __future__ import annotations

import os
import threading
from typing import Self, TextIO

TAIL_BYTES = 500
"""Bytes of the end of a program's stderr that are kept."""
PIECE_BYTES = 65_536
END_SECONDS = 0.1
"""Seconds that the text waits for the last lines of a program that has just ended."""


class StderrTail:
    """A pipe that a thread reads until the programs that write to it have ended."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.file: TextIO = os.fdopen(writer, "w")
        """The file to start a program with."""
        self._tail = b""
        self._thread = threading.Thread(target=self._read, args=(reader,), daemon=True, name="stderr of a program")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def text(self) -> str:
        """Returns the end of the program's stderr on one line; the program must have been started."""
        self.file.close()  # else the pipe would not end with the program
        self._thread.join(END_SECONDS)
        return " ".join(self._tail.decode(errors="replace").split())

    def _read(self, reader: int) -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while piece := pipe.read(PIECE_BYTES):
                self._tail = (self._tail + piece)[-TAIL_BYTES:]
