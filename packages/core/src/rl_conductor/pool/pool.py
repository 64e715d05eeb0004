"""`WorkerPool`: the workers by name, in a fixed order."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from rl_conductor.errors import ConfigError
from rl_conductor.models import Capabilities, Model
from rl_conductor.pool.pool_file import read_pool_file, worker_from
from rl_conductor.pool.roster import indistinguishable
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Card

log = logging.getLogger("rl_conductor")

AnyWorker = Worker | Model | str | Mapping[str, Any]
"""A worker, a model, its `provider:model`, or one of the two last with what is known of it, as in
`{"model": "openai:gpt-5", "description": "checks numbers"}`; the keys are those of a worker in a pool file."""


class WorkerPool(Mapping[str, Worker]):
    """Workers by name, in a fixed order: a worker's position is the number by which the Conductor knows it."""

    def __init__(self, workers: Iterable[Worker] | Mapping[str, AnyWorker]) -> None:
        """Workers, or models (or their `provider:name`, or entries with a description) by the names they shall have.

        Raises:
            ConfigError: no worker at all, two of one name, or something that is none.
        """
        if isinstance(workers, Mapping):
            workers = [_called(name, one) for name, one in workers.items()]
        self._workers: dict[str, Worker] = {}
        for worker in workers:
            if not isinstance(worker, Worker):
                raise ConfigError(f"{worker!r} has no name to be a worker by; write {{'name': {worker!r}}}")
            if worker.name in self._workers:
                raise ConfigError(f"two workers are called {worker.name!r}; give each a name of its own")
            self._workers[worker.name] = worker
        if not self._workers:
            raise ConfigError("a pool needs at least one worker, such as WorkerPool({'fast': 'openai:gpt-5-mini'})")

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """The pool that a TOML file describes; see `docs/pools.md` for its keys.

        Raises:
            ConfigError: no such file, not TOML, or an unknown or ill-typed key; the message names it.
        """
        return cls(read_pool_file(path).build())

    @property
    def cards(self) -> tuple[Card, ...]:
        """What is known of each worker, in order."""
        return tuple(worker.card for worker in self._workers.values())

    @property
    def capabilities(self) -> Capabilities:
        """What at least one worker can take and do."""
        able = [worker.model.capabilities for worker in self._workers.values()]
        return Capabilities(
            tools=any(one.tools for one in able),
            images=any(one.images for one in able),
            files=any(one.files for one in able),
            json_schema=any(one.json_schema for one in able),
            grammar=any(one.grammar for one in able),
        )

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    async def aclose(self) -> None:
        """Close every model, even if one can't be closed; then its error is raised."""
        await close_all(worker.model for worker in self._workers.values())


async def close_all(models: Iterable[Model]) -> None:
    """Close each of `models`, whatever comes of the others; the first error is raised afterwards."""
    failed: list[Exception] = []
    for one in models:
        try:
            await one.aclose()
        except Exception as error:  # it is raised below
            failed.append(error)
    if failed:
        raise failed[0]


def warn_of_lookalikes(pool: WorkerPool) -> None:
    """Logs a warning, once for each set of names, about workers that a planner can't tell apart by their cards."""
    for names in indistinguishable(pool.cards):
        _warn_of(names)


@lru_cache(maxsize=256)
def _warn_of(names: tuple[str, ...]) -> None:
    """Warn once that the planner can't choose between these workers."""
    log.warning(
        "workers %s are described alike, so the planner can't choose between them; say what each is for, "
        "as in {%r: {'model': ..., 'description': 'checks numbers'}}",
        ", ".join(map(repr, names)),
        names[0],
    )


def _called(name: str, given: AnyWorker) -> Worker:
    if isinstance(given, Mapping):
        return worker_from(name, given, _called)
    if not isinstance(given, Worker):
        return Worker.of(name, given)
    return replace(given, name=name, card=given.card.model_copy(update={"name": name}))
