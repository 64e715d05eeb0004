"""`Row`: what became of one system on one sample; `Results`: the rows in a file, written as they come.

A bench that was killed goes on from its file. A row of other settings is never taken for one of these, and one that
failed for want of an answer is made again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from rl_conductor.amounts import counted
from rl_conductor.errors import ConfigError
from rl_conductor.files import writing
from rl_conductor.types import Text, Usage, Value


class Key(Value):
    """Which row it is."""

    pool: str
    task: str
    system: str
    sample: str
    repeat: int
    settings: str
    """Fingerprint of all that decides the row: the system and what it learned from, the pool and its cards, the sample
    and who scores it, the seed, the prompts."""


class Row(Value):
    """One system on one sample, once."""

    key: Key
    domain: str = ""
    depth: int | None = None
    value: float
    """The score, 0 to 1."""
    answer: Text | None = None
    """The answer as the scorer found it in the reply."""
    text: Text = ""
    """The reply."""
    error: Text | None = None
    """Why there was no reply."""
    valid: bool | None = None
    """Whether the first plan that was written could be run as it stood; `None` for systems that write none."""
    steps: int = 0
    """How many steps were run."""
    workers: tuple[str, ...] = ()
    """Who did them, in order."""
    choice: str = ""
    """What the system decided for this sample, in its own words."""
    usage: Usage = Usage()
    seconds: float = 0.0
    """Seconds until the answer, on the critical path; cached calls count as long as they took at first."""


def fingerprint(*parts: str) -> str:
    """A short hash of texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def check_learnable(rows: Iterable[Row], task: str) -> None:
    """Raise `ConfigError` where a task can teach nothing, since every run on it failed."""
    errors = [row.error for row in rows]
    if None not in errors:
        raise ConfigError(
            f"nothing can be learned from {task!r}: {counted(len(errors), 'run')}, none with an answer; the first says:"
            f" {errors[0]}"
        )


def lesson(rows: Iterable[Row]) -> str:
    """Fingerprint of all that a system can learn from rows."""
    return fingerprint(*(row.model_dump_json(include={"value", "text", "steps", "choice"}) for row in rows))


class Results:
    """The rows of a JSON-lines file, and those that are added to it."""

    def __init__(self, path: Path) -> None:
        """Read what is there; the beginning of a row that was being written when all ended is cut off.

        Raises:
            ConfigError: the file is something else, or can't be written.
        """
        self.path = path
        self._rows: dict[Key, Row] = {}
        self._tried: set[Key] = set()
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as file:
                file.seek(0)
                whole, _, torn = file.read().rpartition(b"\n")
                if torn:
                    file.truncate(len(whole) + 1 if whole else 0)
        for number, line in enumerate(whole.splitlines(), 1):
            row = self._read(line, number)
            self._rows[row.key] = row

    def find(self, key: Key) -> Row | None:
        """The row of this key, unless it has yet to be made; one that failed is made again, but once a process."""
        row = self._rows.get(key)
        return None if row is None or (row.error is not None and key not in self._tried) else row

    def add(self, row: Row) -> None:
        """Keep a row, on disk before anything else is paid for."""
        self._rows[row.key] = row
        self._tried.add(row.key)
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(row.model_dump_json(exclude_defaults=True) + "\n")

    def _read(self, line: bytes, number: int) -> Row:
        try:
            return Row.model_validate_json(line)
        except ValidationError as error:
            raise ConfigError(
                f"line {number} of {str(self.path)!r} is no row of a bench; name another folder with --out"
            ) from error
