"""Settings of a bench's worker pools: their source, names and cards."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor_training.workers.pool_settings import PoolSource
from rl_conductor_training.workers.reply_cache import ReplyCache, cache_version


class BenchPoolSettings(PoolSource):
    """Settings of a pool: the table `[pools.NAME]`."""

    cards: Literal["given", "measured"] = "given"
    """`measured`: the cards state each worker's accuracy on the calibration samples."""
    rename: dict[str, str] = Field(default_factory=dict)
    """New names of workers, listed in this order, to test a planner on names and an order it was not trained on."""
    strengths: dict[str, str] = Field(default_factory=dict)
    """New descriptions of strengths, by the worker's name before `rename`."""

    def build(self, cache: ReplyCache) -> WorkerPool:
        """Builds the pool with cached replies, renamed and reordered workers and new strengths."""
        pool = super().build(cache)
        unknown = (self.rename.keys() | self.strengths.keys()) - pool.keys()
        if unknown:
            raise ConfigError(f"rename or strengths names {', '.join(sorted(unknown))}, not in the pool")
        order = [*self.rename, *pool]
        return WorkerPool(self._rename_worker(pool[name]) for name in sorted(pool, key=order.index))

    @property
    def identity(self) -> str:
        """Serialises everything that affects the replies of the workers and their cards."""
        settings = self.model_dump_json(include={"small", "rename", "cards", "strengths"}, exclude_defaults=True)
        if self.small is not None:
            return settings
        # Without tags, which are not in prompts: the order of a set differs between processes.
        pool_file = self.pool_file()
        versions = "".join(map(cache_version, pool_file.workers.values()))
        return (
            settings
            + versions
            + pool_file.model_dump_json(include={"workers"}, exclude={"workers": {"__all__": {"tags"}}})
        )

    def _rename_worker(self, worker: Worker) -> Worker:
        name = self.rename.get(worker.name, worker.name)
        strengths = self.strengths.get(worker.name, worker.card.strengths)
        return replace(worker, name=name, card=worker.card.model_copy(update={"name": name, "strengths": strengths}))
