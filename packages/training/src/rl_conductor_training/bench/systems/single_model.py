"""Each worker alone, and the best of them: the baselines that combinations of workers have to beat."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rl_conductor.errors import ConfigError
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.results import SampleResult
from rl_conductor_training.bench.systems.base import Reply, System, SystemEntry
from rl_conductor_training.tasks import Sample


class SingleModel(SystemEntry):
    """Asks single workers the question; one system per worker."""

    kind: Literal["alone"]
    workers: tuple[str, ...] = ()
    """Names of the workers; empty for all."""

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Builds a system for each worker, named after it; `name` is not used."""
        del name
        return [single_worker_system(worker, context) for worker in self.workers or context.pool]


class BestSingle(SystemEntry):
    """Asks the worker with the highest accuracy on the calibration samples."""

    kind: Literal["best-single"]

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Selects the worker on the calibration samples, never on the test's."""
        worker = await select_best_worker(context)
        calibration = context.require_calibration()
        description = f"{worker}, chosen on {calibration.name} (n = {len(calibration.samples)})"
        system = single_worker_system(worker, context)
        return [replace(system, name=name, description=description)]


def single_worker_system(worker: str, context: BenchContext) -> System:
    """Builds the system that asks one worker the question."""
    if worker not in context.pool:
        raise ConfigError(f"no worker {worker!r}: the pool has {', '.join(context.pool)}")

    async def answer(sample: Sample, repeat: int) -> Reply:
        return Reply.from_trace(await context.run(sample.question, repeat=repeat, single=worker))

    description = f"{context.pool[worker].model.name}, just asked the question"
    return System(name=worker, description=description, identity=f"alone {worker}", answer=answer)


async def evaluate_workers(context: BenchContext) -> dict[str, list[SampleResult]]:
    """Returns the results of each worker alone on the calibration samples; raises like `BenchContext.evaluate`."""
    return await context.evaluate(single_worker_system(worker, context) for worker in context.pool)


async def select_best_worker(context: BenchContext) -> str:
    """Returns the worker with the highest accuracy on the calibration samples; the first of equals."""
    results = await evaluate_workers(context)
    return max(results, key=lambda worker: sum(result.value for result in results[worker]))
