"""Opens the worker pool of a training file, with a cache of replies on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_conductor._internal.sync import run_sync
from rl_conductor.pool.pool import WorkerPool
from rl_conductor_training.train.config import TrainPoolSettings
from rl_conductor_training.workers.reply_cache import ReplyCache


@contextmanager
def open_pool(settings: TrainPoolSettings, path: Path) -> Iterator[WorkerPool]:
    """Opens the pool and closes its models when the block ends.

    Args:
        settings: the `[pool]` table.
        path: the SQLite file that replies are cached in, unless `settings.remember` is false.
    """
    memory = ReplyCache(path if settings.remember else None)
    try:
        yield settings.build(memory)
    finally:
        run_sync(memory.aclose())
