"""`BenchContext`: the pool, task and calibration data that systems run on; all their calls go through its `run`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from rl_conductor.calls.scope import call_scope
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError, RunError
from rl_conductor.models import Model
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.model_entry import ModelEntry
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.trace.events import Event, Finished
from rl_conductor.trace.trace import Call, Trace
from rl_conductor.types import Request, Sampling, Usage, total
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.plan_space import AccessMode
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.bench.results import SampleResult, require_any_answer
from rl_conductor_training.tasks import Sample, Score, Task

if TYPE_CHECKING:
    from rl_conductor_training.bench.systems.base import System


@dataclass
class UsageMeter:
    """Adds up the usage of all calls, including those of runs without a result."""

    usage: Usage = field(default_factory=Usage)
    """Usage of all calls, cached ones included."""
    paid: Usage = field(default_factory=Usage)
    """Usage of the calls that were not cached; a partly cached worker call counts in full."""
    has_unknown_price: bool = False
    """Whether the price of a model that answered is unknown. What a failed call cost is unknown, too, at any price."""

    def on_event(self, event: Event) -> None:
        """Adds the calls of a run when it ends, also if it was cancelled."""
        if isinstance(event, Finished):
            self._add([call.usage for call in event.trace.calls])
            self.has_unknown_price |= _lack_price(call.usage for call in _answered_calls(event.trace.calls))

    def meter_scoring(self, task: Task) -> Task:
        """Returns a copy of `task` that also adds up the calls of its scorer, such as those of a judge."""

        async def score(sample: Sample, text: str) -> Score:
            usages: list[Usage] = []
            try:
                with call_scope(nested_usage=usages):
                    return await task.score(sample, text)
            finally:
                self._add(usages)
                self.has_unknown_price |= _lack_price(usage for usage in usages if usage.total_tokens)

        return replace(task, scorer=score)

    def _add(self, usages: Sequence[Usage]) -> None:
        self.usage += total(usages)
        self.paid += total(filter(_is_paid, usages))


def _is_paid(usage: Usage) -> bool:
    return usage.cached_calls < usage.calls


def _lack_price(usages: Iterable[Usage]) -> bool:
    return any(usage.unpriced_calls > 0 and _is_paid(usage) for usage in usages)


def _answered_calls(calls: Iterable[Call]) -> Iterator[Call]:
    """Yields the calls that a model answered; of an agent or a conductor, the calls that it made."""
    for call in calls:
        if call.nested is not None and call.nested.calls:
            yield from _answered_calls(call.nested.calls)
        elif call.completion is not None:
            yield call


@dataclass(frozen=True, kw_only=True)
class BenchContext:
    """One pool and one task, with the calibration data that systems may use."""

    pool: WorkerPool
    task: Task
    calibration: Task | None
    """Samples that systems may learn from; it shares no question with `task`."""
    collect_results: Callable[[System, Task], Awaitable[list[SampleResult]]]
    """Returns the results of a system on a task, running it where they are missing."""
    build_model: Callable[[ModelEntry], Model]
    """Builds the model of an entry with cached replies, so that none is paid for twice."""
    seed: int = 0
    finished: dict[str, list[SampleResult]] = field(default_factory=dict)
    """Results on `task` of the systems that have already run, by system."""
    meter: UsageMeter = field(default_factory=UsageMeter)

    def require_calibration(self) -> Task:
        """Returns the calibration task.

        Raises:
            ConfigError: the bench has none.
        """
        if self.calibration is None:
            raise ConfigError("a system that chooses or learns needs a [calibration] table: write its task there")
        return self.calibration

    async def evaluate(self, systems: Iterable[System]) -> dict[str, list[SampleResult]]:
        """Returns the results of each system on the calibration samples, by its name.

        Raises:
            ConfigError: no run had any answer.
        """
        calibration = self.require_calibration()
        results = {system.name: await self.collect_results(system, calibration) for system in systems}
        require_any_answer(chain.from_iterable(results.values()), calibration.name)
        return results

    async def run(
        self,
        question: str,
        *,
        repeat: int = 0,
        workflow: Workflow | None = None,
        single: str | None = None,
        planner: Planner | None = None,
        selector: WorkflowSelector | None = None,
        pool: WorkerPool | None = None,
        limits: Limits | None = None,
        access: AccessMode = "positional",
        sampling: Sampling | None = None,
    ) -> Trace:
        """Runs a workflow, a `single` worker or a planner's plan, and returns the trace even if the run failed.

        Args:
            question: the question of the sample.
            repeat: index of the repetition; workers that sample at random get another seed in each.
            workflow: the workflow to run, if it is fixed.
            single: the worker to ask the question, without a workflow.
            selector: selects a learned workflow for the question.
            planner: writes the plan in all other cases.
            pool: replaces the pool of the context.
            limits: limits of the run.
            access: the access mode of plans.
            sampling: replaces the sampling of the answering worker.
        """
        seeded_pool = self._with_seeds(pool or self.pool, repeat)
        if limits is None:
            limits = Limits(steps=len(workflow.steps) if workflow else 1)
        conductor = Conductor(
            planner or Planner(model=next(iter(seeded_pool.values())).model),  # not called without a planner
            seeded_pool,
            policy=Policy(single=single),
            limits=limits,
            access=access,
            selector=selector,
        )
        request = Request.user(question, sampling=sampling)
        try:
            return await conductor.run(request, workflow=workflow, on_event=self.meter.on_event)
        except RunError as error:
            return error.trace

    def _with_seeds(self, pool: WorkerPool, repeat: int) -> WorkerPool:
        """Gives a seed for this repetition to each worker that samples at random and has none."""
        return WorkerPool(_with_seed(worker, self.seed + repeat) for worker in pool.values())


def _with_seed(worker: Worker, seed: int) -> Worker:
    if worker.sampling.temperature == 0 or worker.sampling.seed is not None:
        return worker
    return replace(worker, sampling=worker.sampling.model_copy(update={"seed": seed}))
