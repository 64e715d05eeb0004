"""Each worker alone, and the best of them: what every way to combine workers has to beat."""

from __future__ import annotations

from itertools import chain
from typing import Literal

from rl_conductor.bench.arena import Arena
from rl_conductor.bench.rows import Row, check_learnable
from rl_conductor.bench.systems.base import Reply, System, SystemEntry
from rl_conductor.errors import ConfigError
from rl_conductor.tasks import Sample


class Alone(SystemEntry):
    """Each worker is just asked the question; one system a worker."""

    kind: Literal["alone"]
    workers: tuple[str, ...] = ()
    """Which; none named means all."""

    async def ready(self, name: str, arena: Arena) -> list[System]:
        """A system for each worker; the settings' own `name` is not used."""
        del name
        return [alone(worker, arena) for worker in self.workers or arena.pool]


class BestSingle(SystemEntry):
    """The worker that was right most often on the calibration samples; never chosen on the test's own."""

    kind: Literal["best-single"]

    async def ready(self, name: str, arena: Arena) -> list[System]:
        """The system."""
        worker = await best_single(arena)
        told = f"{worker}, chosen on {arena.calibration.name} (n = {len(arena.calibration.samples)})"
        made = alone(worker, arena)
        return [System(name=name, about=told, identity=made.identity, answer=made.answer)]


def alone(worker: str, arena: Arena) -> System:
    """`worker`, just asked the question."""
    if worker not in arena.pool:
        raise ConfigError(f"no worker {worker!r}: the pool has {', '.join(arena.pool)}")

    async def answer(sample: Sample, repeat: int) -> Reply:
        return Reply.of(await arena.run(sample.question, repeat=repeat, single=worker))

    model = arena.pool[worker].model.name
    return System(name=worker, about=f"{model}, just asked the question", identity=f"alone {worker}", answer=answer)


async def each_alone(arena: Arena) -> dict[str, list[Row]]:
    """What each worker alone made of the calibration samples.

    Raises:
        ConfigError: not one of them had any answer.
    """
    rows = {worker: await arena.record(alone(worker, arena), arena.calibration) for worker in arena.pool}
    check_learnable(chain.from_iterable(rows.values()), arena.calibration.name)
    return rows


async def best_single(arena: Arena) -> str:
    """The worker that was right most often on the calibration samples; of equals the first in the pool."""
    rows = await each_alone(arena)
    return max(rows, key=lambda worker: sum(row.value for row in rows[worker]))
