"""`Library`: passages of text that are found by the words they share with a query (BM25, by SQLite's full-text index).

It lives in memory. It knows no model and no meaning: a passage without a word of the query is not found.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rl_conductor.errors import ConfigError
from rl_conductor.files import reading

MOST_CHARS = 1_200
"""Longest passage made from a file; longer paragraphs are cut at a sentence's or word's end."""
TITLE_WEIGHT = 5.0
"""How much more a word counts in a title than in the text: the passage about a thing before those that mention it."""
COMMON = re.compile("an?|the|and|or|of|in|on|at|by|to|for|from|with|is|was|has|have|do|it|its|that|how|what|which")
"""Words that say nothing of what is searched for."""
READ = (".md", ".rst", ".txt")


@dataclass(frozen=True)
class Passage:
    """A piece of text and what it belongs to."""

    title: str
    text: str


class Library:
    """Passages, and a search among them. Any thread may search."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        """Index `passages`.

        Raises:
            ConfigError: there is none, or this Python's SQLite has no full-text index.
        """
        self._lock = threading.Lock()
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._index.close)
        try:
            self._index.execute("CREATE VIRTUAL TABLE passages USING fts5(title, text, tokenize='porter unicode61')")
        except sqlite3.OperationalError as missing:
            raise ConfigError(f"a library needs SQLite with FTS5, and this Python's has none: {missing}") from missing
        rows = [(passage.title, passage.text) for passage in passages]
        if not rows:
            raise ConfigError("a library needs at least one passage")
        self._index.executemany("INSERT INTO passages VALUES (?, ?)", rows)

    @classmethod
    def from_path(cls, path: str | Path) -> Self:
        """The paragraphs of a text file, or of every `.md`, `.rst` and `.txt` file below a folder.

        Raises:
            ConfigError: there is no such file or folder, or no text in it.
        """
        place = Path(path).expanduser()
        files = sorted(file for file in place.rglob("*") if file.suffix in READ) if place.is_dir() else [place]
        return cls(passage for file in files for passage in _paragraphs(file))

    def search(self, query: str, *, limit: int = 4) -> list[Passage]:
        """The passages that fit `query` best, best first."""
        words = [word for word in dict.fromkeys(re.findall(r"\w+", query.lower())) if not COMMON.fullmatch(word)]
        if not words:
            return []
        any_of_them = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            found = self._index.execute(
                "SELECT title, text FROM passages WHERE passages MATCH ? "
                "ORDER BY bm25(passages, ?, 1.0), rowid LIMIT ?",
                (any_of_them, TITLE_WEIGHT, limit),
            ).fetchall()
        return [Passage(title, text) for title, text in found]


def _paragraphs(file: Path) -> Iterable[Passage]:
    with reading(file):
        text = file.read_text(encoding="utf-8", errors="replace")
    for paragraph in re.split(r"\n\s*\n", text):
        for piece in _pieces(" ".join(paragraph.split())):
            yield Passage(title=file.stem, text=piece)


def _pieces(text: str) -> Iterable[str]:
    while len(text) > MOST_CHARS:
        end = max(text.rfind(". ", 0, MOST_CHARS) + 1, 0) or text.rfind(" ", 0, MOST_CHARS)
        cut = end if end > 0 else MOST_CHARS
        yield text[:cut].strip()
        text = text[cut:].strip()
    if text:
        yield text
