"""`Arena`: where systems meet. Every call of every system goes through its `run`, so all are counted alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError, RunError
from rl_conductor.events import Event, Finished
from rl_conductor.ledger import reports
from rl_conductor.limits import Limits
from rl_conductor.models import Model
from rl_conductor.planner import Planner
from rl_conductor.policy import Policy
from rl_conductor.pool import ModelEntry, Worker, WorkerPool
from rl_conductor.tasks import Sample, Score, Task
from rl_conductor.trace import Trace
from rl_conductor.types import Message, Request, Sampling, Usage, total
from rl_conductor.workflow import AccessMode, Workflow

if TYPE_CHECKING:
    from rl_conductor.bench.rows import Row
    from rl_conductor.bench.systems.base import System


@dataclass
class Account:
    """What was used, whether or not it came to a row."""

    usage: Usage = field(default_factory=Usage)
    """Cached calls included."""
    paid: Decimal = Decimal(0)
    """US dollars for calls that were really made; a worker's that were cached in part count in full."""

    def hear(self, event: Event) -> None:
        """Count a run once it is over, be it cancelled."""
        if isinstance(event, Finished):
            self._count([call.usage for call in event.trace.calls()])

    def counting(self, task: Task) -> Task:
        """`task`, with what its scorer uses counted as well, as where a judge is asked."""

        async def score(sample: Sample, text: str) -> Score:
            told: list[Usage] = []
            around = reports.set(told)
            try:
                return await task.score(sample, text)
            finally:
                reports.reset(around)
                self._count(told)

        return replace(task, scorer=score)

    def _count(self, used: Sequence[Usage]) -> None:
        self.usage += total(used)
        self.paid += sum((usage.cost for usage in used if usage.cached_calls < usage.calls), Decimal(0))


@dataclass(frozen=True, kw_only=True)
class Arena:
    """One pool and one task, and what the systems may know beforehand."""

    pool: WorkerPool
    task: Task
    learning: Task | None
    """What systems may learn from; it shares no sample with `task`."""
    record: Callable[[System, Task], Awaitable[list[Row]]]
    """The rows of a system on a task; those that are missing are made."""
    model: Callable[[ModelEntry], Model]
    """The model of an entry; it remembers its replies, so that none is paid twice."""
    seed: int = 0
    ran: dict[str, list[Row]] = field(default_factory=dict)
    """The rows of the systems that have run on `task` so far, by system."""
    account: Account = field(default_factory=Account)

    @property
    def calibration(self) -> Task:
        """What systems may learn from.

        Raises:
            ConfigError: there is nothing.
        """
        if self.learning is None:
            raise ConfigError("a system that chooses or learns needs a [calibration] table: write its task there")
        return self.learning

    async def run(
        self,
        question: str,
        *,
        repeat: int = 0,
        workflow: Workflow | None = None,
        single: str | None = None,
        planner: Planner | None = None,
        pool: WorkerPool | None = None,
        limits: Limits | None = None,
        access: AccessMode = "positional",
        sampling: Sampling | None = None,
    ) -> Trace:
        """One run, whatever comes of it: of a workflow, of a `single` worker without any, or of a planner's plan.

        Args:
            question: the sample's.
            repeat: which repetition it is; workers that draw at random draw otherwise in each.
            workflow: what to run.
            single: the worker that is just asked the question.
            planner: who plans otherwise.
            pool: in place of the arena's own.
            limits: of the run.
            access: what a planner may write.
            sampling: in place of the answering worker's own.
        """
        seeded = self._drawing(pool or self.pool, repeat)
        if limits is None:
            limits = Limits(steps=len(workflow.steps) if workflow else 1)
        conductor = Conductor(
            planner or Planner(model=next(iter(seeded.values())).model),  # which is never asked for a plan
            seeded,
            policy=Policy(single=single),
            limits=limits,
            access=access,
        )
        request = Request(messages=(Message.user(question),), sampling=sampling or Sampling())
        try:
            return await conductor.run(request, workflow=workflow, on_event=self.account.hear)
        except RunError as error:
            return error.trace

    def _drawing(self, pool: WorkerPool, repeat: int) -> WorkerPool:
        """`pool` with a seed of this repetition for each worker that draws at random and has none."""
        return WorkerPool(_seeded(worker, self.seed + repeat) for worker in pool.values())


def _seeded(worker: Worker, seed: int) -> Worker:
    if worker.sampling.temperature == 0 or worker.sampling.seed is not None:
        return worker
    return replace(worker, sampling=worker.sampling.model_copy(update={"seed": seed}))
