"""The pools of a bench: where workers come from, and what planners are told of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from rl_conductor.errors import ConfigError
from rl_conductor.pool import Worker, WorkerPool
from rl_conductor.workers.source import Memory, PoolSource, version_of


class PoolSettings(PoolSource):
    """A pool: `[pools.NAME]`."""

    cards: Literal["given", "measured"] = "given"
    """`measured`: planners are told what each worker was found to be right on among the calibration samples."""
    rename: dict[str, str] = Field(default_factory=dict)
    """Other names for workers, which then also stand in this order: what was learned about either must not help."""
    strengths: dict[str, str] = Field(default_factory=dict)
    """By worker, as it was called before `rename`: other words for what it is good at."""

    def build(self, memory: Memory) -> WorkerPool:
        """The pool, with workers that remember their replies, in the order and words of this bench."""
        pool = super().build(memory)
        strangers = (self.rename.keys() | self.strengths.keys()) - pool.keys()
        if strangers:
            raise ConfigError(f"rename or strengths names {', '.join(sorted(strangers))}, not in the pool")
        order = [*self.rename, *pool]
        return WorkerPool(self._retold(pool[name]) for name in sorted(pool, key=order.index))

    @property
    def identity(self) -> str:
        """All that decides what its workers say and what a planner is told of them."""
        own = self.model_dump_json(include={"small", "rename", "cards", "strengths"}, exclude_defaults=True)
        if self.small is not None:
            return own
        # Without the tags, which nobody is told: a set has another order in each process.
        content = self.content()
        versions = "".join(map(version_of, content.workers.values()))
        return own + versions + content.model_dump_json(include={"workers"}, exclude={"workers": {"__all__": {"tags"}}})

    def _retold(self, worker: Worker) -> Worker:
        name = self.rename.get(worker.name, worker.name)
        strengths = self.strengths.get(worker.name, worker.card.strengths)
        return replace(worker, name=name, card=worker.card.model_copy(update={"name": name, "strengths": strengths}))
