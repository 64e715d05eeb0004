"""Where the workers of a training or a bench come from, and where their replies are remembered."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_conductor.models import Model, model
from rl_conductor.models.cached import CachedModel
from rl_conductor.pool import ModelEntry, PoolFile, Worker, WorkerEntry, WorkerPool, read_pool_file
from rl_conductor.retrieval import Library
from rl_conductor.tasks.islands import islands
from rl_conductor.workers.delegating import DelegatingModel
from rl_conductor.workers.small import SMALL, small_pool

SHAPELESS = ("threads",)
"""Options that change how fast a reply comes, and nothing else."""
EMBEDDED = "embedded:"


class SmallPool(BaseModel):
    """The small pool of the composite questions, a reader of their library, a coder and a writer: `small`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reader: str = SMALL
    coder: str = SMALL
    writer: str = SMALL
    threads: int = Field(default=1, ge=1)
    """Of each embedded model; more than idle cores is slower."""

    @property
    def models(self) -> tuple[str, str, str]:
        """The names of the workers' models, in their order."""
        return (self.reader, self.coder, self.writer)

    def build(self, memory: Memory) -> WorkerPool:
        """The pool; replies are remembered as the base models gave them."""
        models = {name: model(name, **self._options(name)) for name in dict.fromkeys(self.models)}
        reader, coder, writer = (models[name] for name in self.models)
        pool = small_pool(Library(islands().passages), reader=reader, coder=coder, writer=writer, cache=memory.path)
        memory.models += models.values()
        return pool

    def _options(self, name: str) -> dict[str, Any]:
        return {"threads": self.threads} if name.startswith(EMBEDDED) else {}


class PoolSource(BaseModel):
    """A pool, with one of `file`, `workers` and `small`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Path | None = None
    """A pool file."""
    workers: dict[str, WorkerEntry] = Field(default_factory=dict)
    small: SmallPool | None = None

    @model_validator(mode="after")
    def _comes_from_one_place(self) -> Self:
        given = [name for name, value in self if name in PoolSource.model_fields and value]
        if len(given) != 1:
            raise ValueError(f"write one of file, workers and small, not {' and '.join(given) or 'none'}")
        return self

    def build(self, memory: Memory) -> WorkerPool:
        """The pool, with workers that remember their replies."""
        if self.small is not None:
            return self.small.build(memory)
        content = self.content()
        return WorkerPool(memory.worker(worker, content.workers[worker.name]) for worker in content.build())

    def content(self) -> PoolFile:
        """What the pool file says, or what stands here in its place."""
        return read_pool_file(self.file) if self.file else PoolFile(workers=self.workers)

    @property
    def models(self) -> tuple[str, ...]:
        """The names of its workers' models."""
        return self.small.models if self.small else tuple(entry.model for entry in self.content().workers.values())


@dataclass
class Memory:
    """Where the replies of all models are kept, so that none is paid twice."""

    path: Path | None
    """An SQLite file; without one, every model is asked anew."""
    models: list[Model] = field(default_factory=list)
    """Every model that is in use, for closing."""

    def model(self, entry: ModelEntry) -> Model:
        """The model of an entry, remembering."""
        return self._of(entry.build(), version_of(entry))

    def worker(self, worker: Worker, entry: ModelEntry) -> Worker:
        """`worker`, remembering; one that asks a base model remembers that one's replies and does its own part anew."""
        if isinstance(worker.model, DelegatingModel):
            return replace(worker, model=worker.model.over(self._of(worker.model.base, version_of(entry))))
        return replace(worker, model=self._of(worker.model, version_of(entry)))

    def _of(self, made: Model, version: str) -> Model:
        kept = made if self.path is None else CachedModel(made, self.path, version=version)
        self.models.append(kept)
        return kept

    async def aclose(self) -> None:
        """Close every model."""
        for made in self.models:
            await made.aclose()


def version_of(entry: ModelEntry) -> str:
    """What shapes replies beside the model's name: options, and the state of the files that it is made of."""
    options = {name: value for name, value in entry.options.items() if name not in SHAPELESS}
    named = [text for text in (entry.model.partition(":")[2], *options.values()) if isinstance(text, str)]
    stats = {name: Path(name).stat() for name in named if Path(name).is_file()}
    stamps: dict[str, Any] = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    stamps |= _trained(entry.model)
    return json.dumps([options, stamps], sort_keys=True) if options or stamps else ""


def _trained(name: str) -> dict[str, str]:
    """The hash of the adapter that an embedded model comes with, which a release may change under the same name."""
    provider, _, own = name.partition(":")
    if provider != "embedded":
        return {}
    from rl_conductor.weights import PINNED  # noqa: PLC0415  an extra

    adapter = PINNED[own].adapter if own in PINNED else None
    return {} if adapter is None else {adapter.file: adapter.sha256}
