"""`WorkerPool`: an ordered mapping of names to workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol, Self

from rl_conductor.errors import ConfigError
from rl_conductor.models import Capabilities, Model
from rl_conductor.pool.function_model import WorkerFunction
from rl_conductor.pool.pool_file import read_pool_file, worker_from
from rl_conductor.pool.worker import Worker
from rl_conductor.prompting.roster import indistinguishable
from rl_conductor.trace.setup import WorkerSetup
from rl_conductor.types import Card

log = logging.getLogger("rl_conductor")

AnyWorker = Worker | Model | str | WorkerFunction | Mapping[str, Any]
"""A worker, a model, a `provider:model` name, a Python function, or a mapping with one of these and the settings of a
pool file's worker, as in `{"model": "openai:gpt-6-sol", "description": "checks numbers"}`."""


class WorkerPool(Mapping[str, Worker]):
    """Workers by name, in a fixed order: the position of a worker is its number in plans."""

    def __init__(self, workers: Iterable[Worker] | Mapping[str, AnyWorker]) -> None:
        """Creates a pool from workers, or from a mapping of names to workers, models or `provider:model` names.

        Raises:
            ConfigError: the pool is empty, two workers have the same name, a name is empty or not printable, or an
                item is not a worker.
        """
        if isinstance(workers, Mapping):
            workers = [_create_worker(_printable(name), spec) for name, spec in workers.items()]
        self._workers: dict[str, Worker] = {}
        for worker in workers:
            if not isinstance(worker, Worker):
                kind = type(worker).__name__
                raise ConfigError(f"a list of workers contains a {kind}, which has no name; write {{'name': ...}}")
            if _printable(worker.name) in self._workers:
                raise ConfigError(f"two workers are named {worker.name!r}; worker names must be unique")
            self._workers[worker.name] = worker
        if not self._workers:
            raise ConfigError("a pool needs at least one worker, such as WorkerPool({'fast': 'openai:gpt-6-luna'})")

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Loads a pool from a TOML file; `docs/pools.md` documents its keys.

        Raises:
            ConfigError: the file does not exist, is not TOML, or has an unknown or invalid key.
        """
        return cls(read_pool_file(path).build())

    @cached_property
    def cards(self) -> tuple[Card, ...]:
        """The cards of the workers, in order."""
        return tuple(worker.card for worker in self._workers.values())

    @cached_property
    def setups(self) -> tuple[WorkerSetup, ...]:
        """The cards and settings of the workers that are stored in traces, in order."""
        return tuple(worker.setup for worker in self._workers.values())

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities that at least one worker has."""
        supported = [worker.model.capabilities for worker in self._workers.values()]
        return Capabilities(
            tools=any(capabilities.tools for capabilities in supported),
            images=any(capabilities.images for capabilities in supported),
            files=any(capabilities.files for capabilities in supported),
            json_schema=any(capabilities.json_schema for capabilities in supported),
            grammar=any(capabilities.grammar for capabilities in supported),
        )

    def rank(self, names: Iterable[str]) -> list[str]:
        """Sorts workers by how likely each is to answer any question: by accuracy, then models that can plan first.

        A function, a retriever or an agent may know only its own subject, and its reply need not be an answer.
        """
        workers = [self._workers[name] for name in names]
        workers.sort(key=lambda worker: (-worker.card.mean_accuracy, not worker.model.capabilities.plans))
        return [worker.name for worker in workers]

    def wrap_models(self, wrap: Callable[[Model, str], Model]) -> WorkerPool:
        """Returns a copy with each model replaced by `wrap(model, name)`, where `name` is the worker's."""
        return WorkerPool(replace(worker, model=wrap(worker.model, name)) for name, worker in self._workers.items())

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    async def aclose(self) -> None:
        """Closes every model, then raises the first error, if any."""
        await close_all(worker.model for worker in self._workers.values())


class Closeable(Protocol):
    """Something with connections to close."""

    async def aclose(self) -> None:
        """Closes the connections that are open."""


async def close_all(models: Iterable[Closeable]) -> None:
    """Closes every model even if some fail, then raises the first error, if any."""
    errors: list[Exception] = []
    for model in models:
        try:
            await model.aclose()
        except Exception as error:  # raised below
            errors.append(error)
    if errors:
        raise errors[0]


def warn_of_lookalikes(pool: WorkerPool) -> None:
    """Logs a warning about workers that a planner can't tell apart by their cards, once for each set of names."""
    for names in indistinguishable(pool.cards):
        _log_lookalikes(names)


@lru_cache(maxsize=256)
def _log_lookalikes(names: tuple[str, ...]) -> None:
    log.warning(
        "workers %s have equal descriptions, so the planner can't choose between them; write for each a description "
        "of what it is for, such as 'checks numbers'",
        ", ".join(map(repr, names)),
    )


def _printable(name: Any) -> str:
    """Returns the name of a worker, which is one line in prompts, logs and terminals."""
    if isinstance(name, str) and name.strip() and name.isprintable():
        return name
    raise ConfigError(
        f"a worker is named {name!r}; write a name of letters, digits, spaces and other printable characters"
    )


def _create_worker(name: str, spec: AnyWorker) -> Worker:
    if isinstance(spec, Mapping):
        return worker_from(name, spec, _create_worker)
    return spec.renamed(name) if isinstance(spec, Worker) else Worker.of(name, spec)
