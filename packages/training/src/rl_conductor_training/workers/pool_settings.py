"""`PoolSource`: settings of the worker pools of trainings and benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_conductor.models import model
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.pool_file import PoolFile, WorkerEntry, read_pool_file
from rl_conductor_training.tasks.composite.islands import islands
from rl_conductor_training.workers.passage_index import PassageIndex
from rl_conductor_training.workers.reply_cache import ReplyCache, reply_options
from rl_conductor_training.workers.small import SMALL_MODEL, small_pool

EMBEDDED_PREFIX = "embedded:"


class SmallPool(BaseModel):
    """Settings of the small pool: a reader of the composite questions' library, a coder and a writer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reader: str = SMALL_MODEL
    coder: str = SMALL_MODEL
    writer: str = SMALL_MODEL
    threads: int = Field(default=1, ge=1)
    """Threads of each embedded model; more than the idle cores is slower."""

    @property
    def models(self) -> tuple[str, str, str]:
        """Model names of the reader, coder and writer."""
        return (self.reader, self.coder, self.writer)

    def build(self, cache: ReplyCache) -> WorkerPool:
        """Builds the pool; the replies of the base models are cached."""
        reader, coder, writer = models = [
            model(name, **self._options(name, worker))
            for worker, name in zip(("reader", "coder", "writer"), self.models, strict=True)
        ]
        pool = small_pool(PassageIndex(islands().passages), reader=reader, coder=coder, writer=writer, cache=cache.path)
        cache.models += models
        return pool

    def _options(self, name: str, worker: str) -> dict[str, Any]:
        """Returns the options of a worker's model: an engine of its own keeps the tokens of its fixed prompt."""
        is_embedded = name.startswith(EMBEDDED_PREFIX)
        return {"threads": self.threads, "engine": worker, "parallel": 1} if is_embedded else {}


class PoolSource(BaseModel):
    """Settings of a pool: exactly one of `file`, `workers` and `small`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Path | None = None
    """Path of a pool file."""
    workers: dict[str, WorkerEntry] = Field(default_factory=dict)
    """Workers by name, with the keys of a pool file."""
    small: SmallPool | None = None
    """The small pool of the experiments: a reader, a coder and a writer over one small model."""

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        sources = [name for name, value in self if name in PoolSource.model_fields and value]
        if len(sources) != 1:
            raise ValueError(f"write one of file, workers and small, not {' and '.join(sources) or 'none'}")
        return self

    def build(self, cache: ReplyCache) -> WorkerPool:
        """Builds the pool; the replies of its workers are cached."""
        if self.small is not None:
            return self.small.build(cache)
        pool_file = self.pool_file()
        return WorkerPool(cache.wrap_worker(worker, pool_file.workers[worker.name]) for worker in pool_file.build())

    def pool_file(self) -> PoolFile:
        """Returns the content of the pool file, or `workers` in its place."""
        return read_pool_file(self.file) if self.file else PoolFile(workers=self.workers)

    @property
    def reply_options(self) -> dict[str, str]:
        """The options of each worker that affect its replies, such as its address, as JSON; none of the small pool."""
        entries = {} if self.small is not None else self.pool_file().workers
        return {name: json.dumps(reply_options(entry), sort_keys=True) for name, entry in entries.items()}

    @property
    def models(self) -> tuple[str, ...]:
        """Model names of its workers."""
        return self.small.models if self.small else tuple(entry.model for entry in self.pool_file().workers.values())
