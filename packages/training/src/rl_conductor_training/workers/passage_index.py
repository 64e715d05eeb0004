"""`PassageIndex`: full-text search over passages with BM25, in an in-memory SQLite FTS5 table.

It uses no model and no embeddings: a passage without a word of the query is not found.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from rl_conductor._internal.io import reading_errors
from rl_conductor.errors import ConfigError
from rl_conductor_training.tasks.passage import Passage

MAX_PASSAGE_CHARS = 1_200
"""Longer paragraphs of a file are split at the end of a sentence or word."""
TITLE_WEIGHT = 5.0
"""BM25 weight of titles relative to text, so that a passage about a subject ranks above those that mention it."""
STOP_WORDS = re.compile("an?|the|and|or|of|in|on|at|by|to|for|from|with|is|was|has|have|do|it|its|that|how|what|which")
TEXT_SUFFIXES = (".md", ".rst", ".txt")


class PassageIndex:
    """A searchable collection of passages. Thread-safe."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        """Builds the index of `passages`.

        Raises:
            ConfigError: there are no passages, or this Python's SQLite has no FTS5.
        """
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._database.close)
        try:
            self._database.execute("CREATE VIRTUAL TABLE passages USING fts5(title, text, tokenize='porter unicode61')")
        except sqlite3.OperationalError as error:
            raise ConfigError(f"a library needs SQLite with FTS5, which this Python lacks: {error}") from error
        rows = [(passage.title, passage.text) for passage in passages]
        if not rows:
            raise ConfigError("a library needs at least one passage")
        self._database.executemany("INSERT INTO passages VALUES (?, ?)", rows)

    @classmethod
    def from_path(cls, path: str | Path) -> Self:
        """Indexes the paragraphs of a text file, or of all `.md`, `.rst` and `.txt` files below a folder.

        Raises:
            ConfigError: the file or folder does not exist or contains no text.
        """
        root = Path(path).expanduser()
        files = sorted(file for file in root.rglob("*") if file.suffix in TEXT_SUFFIXES) if root.is_dir() else [root]
        return cls(passage for file in files for passage in _read_passages(file))

    def search(self, query: str, *, limit: int = 4) -> list[Passage]:
        """Returns the passages that match `query` best, best first."""
        words = [word for word in dict.fromkeys(re.findall(r"\w+", query.lower())) if not STOP_WORDS.fullmatch(word)]
        if not words:
            return []
        match_any = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            rows = self._database.execute(
                "SELECT title, text FROM passages WHERE passages MATCH ? "
                "ORDER BY bm25(passages, ?, 1.0), rowid LIMIT ?",
                (match_any, TITLE_WEIGHT, limit),
            ).fetchall()
        return [Passage(title, text) for title, text in rows]


def _read_passages(file: Path) -> Iterable[Passage]:
    with reading_errors(file):
        text = file.read_text(encoding="utf-8", errors="replace")
    for paragraph in re.split(r"\n\s*\n", text):
        for piece in _split_text(" ".join(paragraph.split())):
            yield Passage(title=file.stem, text=piece)


def _split_text(text: str) -> Iterable[str]:
    while len(text) > MAX_PASSAGE_CHARS:
        end = max(text.rfind(". ", 0, MAX_PASSAGE_CHARS) + 1, 0) or text.rfind(" ", 0, MAX_PASSAGE_CHARS)
        cut = end if end > 0 else MAX_PASSAGE_CHARS
        yield text[:cut].strip()
        text = text[cut:].strip()
    if text:
        yield text
