"""`RowFile`: a JSON Lines file of results, appended as they arrive, so that an interrupted run resumes from it.

Results are matched by a key, such as a `fingerprint` of everything that affects them. One without an answer is tried
again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from rl_conductor._internal.io import writing_errors
from rl_conductor._internal.jsonl import read_complete_lines
from rl_conductor.errors import ConfigError
from rl_conductor.types import Text, Value


class Row(Value):
    """The result of one run."""

    key: Hashable
    """Identifies the run, with everything that affects its result."""
    error: Text | None = None
    """Why there is no reply."""


R = TypeVar("R", bound=Row)


class RowFile(Generic[R]):
    """The rows of a file by key."""

    row_type: type[R]
    contents: str
    """The subject of the file, for the error of an invalid row."""

    def __init__(self, path: Path) -> None:
        """Reads the file and truncates a partially written last row.

        Raises:
            ConfigError: a row is invalid, or the file can't be written.
        """
        self.path = path
        self._rows: dict[Hashable, R] = {}
        self._attempted: set[Hashable] = set()
        for number, line in enumerate(read_complete_lines(path), 1):
            row = self._parse_row(line, number)
            self._rows[row.key] = row

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, key: Hashable) -> R | None:
        """Returns the row of `key`; a failed run is repeated once per process, because its cause may be gone."""
        row = self._rows.get(key)
        return None if row is None or (row.error is not None and key not in self._attempted) else row

    def append(self, row: R) -> None:
        """Appends a row to the file, before anything else is paid for."""
        self._rows[row.key] = row
        self._attempted.add(row.key)
        with writing_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(row.model_dump_json() + "\n")

    def _parse_row(self, line: bytes, number: int) -> R:
        try:
            return self.row_type.model_validate_json(line)
        except ValidationError as error:
            raise ConfigError(
                f"line {number} of {str(self.path)!r} is not a row of {self.contents}; name another folder with --out"
            ) from error


def fingerprint(*parts: str) -> str:
    """Hashes texts to 16 hexadecimal digits."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
