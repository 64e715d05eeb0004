"""The workers that a training file names, with every reply remembered on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rl_conductor.models import Model, model
from rl_conductor.models.cached import CachedModel
from rl_conductor.pool import PoolFile, WorkerPool
from rl_conductor.retrieval import Library
from rl_conductor.sync import run_sync
from rl_conductor.tasks.islands import islands
from rl_conductor.train.config import SmallPool, TrainConfig
from rl_conductor.workers.small import small_pool

EMBEDDED = "embedded:"


@contextmanager
def pool_of(config: TrainConfig, cache: Path) -> Iterator[WorkerPool]:
    """The pool, open.

    Args:
        config: which one.
        cache: the file for replies, if they are to be remembered.
    """
    kept = cache if config.cache else None
    pool = _small(config.small, kept) if config.small else _remembering(_described(config), kept)
    try:
        yield pool
    finally:
        run_sync(pool.aclose())


def _described(config: TrainConfig) -> WorkerPool:
    return WorkerPool.from_toml(config.pool) if config.pool else WorkerPool(PoolFile(workers=config.workers).made())


def _remembering(pool: WorkerPool, cache: Path | None) -> WorkerPool:
    if cache is None:
        return pool
    return WorkerPool(replace(worker, model=CachedModel(worker.model, cache)) for worker in pool.values())


def _small(entry: SmallPool, cache: Path | None) -> WorkerPool:
    made: dict[str, Model] = {}
    for name in (entry.reader, entry.coder, entry.writer):
        if name not in made:
            made[name] = model(name, **({"threads": entry.threads} if name.startswith(EMBEDDED) else {}))
    return small_pool(
        Library(islands().passages),
        reader=made[entry.reader],
        coder=made[entry.coder],
        writer=made[entry.writer],
        cache=cache,
    )
