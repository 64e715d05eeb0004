"""The workers that a training file names, with every reply remembered on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_conductor.pool import WorkerPool
from rl_conductor.sync import run_sync
from rl_conductor.train.config import PoolEntry
from rl_conductor.workers.source import Memory


@contextmanager
def opened(entry: PoolEntry, path: Path) -> Iterator[WorkerPool]:
    """The pool, until the block ends.

    Args:
        entry: which one.
        path: the SQLite file for replies, if they are to be remembered.
    """
    memory = Memory(path if entry.remember else None)
    try:
        yield entry.build(memory)
    finally:
        run_sync(memory.aclose())
