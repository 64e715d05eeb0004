"""The workers that a training file names, with every reply remembered on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rl_conductor.models import Model, model
from rl_conductor.models.cached import CachedModel
from rl_conductor.pool import PoolFile, Worker, WorkerPool, read_pool_file
from rl_conductor.retrieval import Library
from rl_conductor.sync import run_sync
from rl_conductor.tasks.islands import islands
from rl_conductor.train.config import PoolEntry, SmallPool
from rl_conductor.workers.delegating import DelegatingModel
from rl_conductor.workers.small import small_pool

EMBEDDED = "embedded:"


@contextmanager
def opened(entry: PoolEntry, memory: Path) -> Iterator[WorkerPool]:
    """The pool, until the block ends.

    Args:
        entry: which one.
        memory: the SQLite file for replies, if they are to be remembered.
    """
    kept = memory if entry.remember else None
    pool = _small(entry.small, kept) if entry.small else _described(entry, kept)
    try:
        yield pool
    finally:
        run_sync(pool.aclose())


def _described(entry: PoolEntry, memory: Path | None) -> WorkerPool:
    described = read_pool_file(entry.file) if entry.file else PoolFile(workers=entry.workers)
    return WorkerPool(worker if memory is None else _remembering(worker, memory) for worker in described.made())


def _remembering(worker: Worker, memory: Path) -> Worker:
    if isinstance(worker.model, DelegatingModel):  # its own part is done anew: its name does not tell all of it
        worker.model.base = CachedModel(worker.model.base, memory)
        return worker
    return replace(worker, model=CachedModel(worker.model, memory))


def _small(entry: SmallPool, memory: Path | None) -> WorkerPool:
    made: dict[str, Model] = {}
    for name in (entry.reader, entry.coder, entry.writer):
        if name not in made:
            made[name] = model(name, **({"threads": entry.threads} if name.startswith(EMBEDDED) else {}))
    return small_pool(
        Library(islands().passages),
        reader=made[entry.reader],
        coder=made[entry.coder],
        writer=made[entry.writer],
        cache=memory,
    )
