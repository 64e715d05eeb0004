"""Runs a bench: every system on every sample, each row kept as it comes, none made twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal

from rl_conductor.amounts import dollars
from rl_conductor.bench import calibration
from rl_conductor.bench.arena import Account, Arena
from rl_conductor.bench.rows import Key, Results, Row, fingerprint
from rl_conductor.bench.settings import BenchSettings, TaskSettings
from rl_conductor.bench.systems.alone import each_alone
from rl_conductor.bench.systems.base import Reply, System
from rl_conductor.errors import ConductorError, ConfigError, LimitError
from rl_conductor.folders import cache_folder
from rl_conductor.pool import WorkerPool
from rl_conductor.tasks import Sample, Task
from rl_conductor.tasks.base import wrong
from rl_conductor.trace import PlanRecord
from rl_conductor.types import total
from rl_conductor.wording import wording_version
from rl_conductor.workers.source import Memory


@dataclass(frozen=True)
class Entrant:
    """A system in one section, with its rows."""

    system: System
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Section:
    """All systems on one task over one pool."""

    task: str
    pool: str
    models: dict[str, str]
    """The workers' models."""
    entrants: tuple[Entrant, ...]
    learning: tuple[Row, ...] = ()
    """What was run so that systems could choose and learn."""


@dataclass
class Bench:
    """A bench on its way."""

    settings: BenchSettings
    results: Results
    limit: int | None = None
    """Most samples of each task, whatever its settings say."""
    budget: Decimal | None = None
    """US dollars: once so much is paid, no further sample is begun."""
    on_row: Callable[[Row, int, int], None] = lambda _row, _done, _all: None
    """Told of each row, how many of its system's are there, and how many there will be."""
    account: Account = field(default_factory=Account)
    """What was used in this process, cached calls included."""

    async def run(self) -> list[Section]:
        """Every section. Rows that are in the results already are not made again.

        Raises:
            ConfigError: the settings do not fit each other.
            LimitError: the budget is spent.
        """
        memory = Memory(self.settings.cache or cache_folder() / "bench-replies.sqlite")
        try:
            return [
                await self._section(task, pool, memory) for pool in self.settings.pools for task in self.settings.tasks
            ]
        finally:
            await memory.aclose()

    async def _section(self, task: str, pool: str, memory: Memory) -> Section:
        workers = self.settings.pools[pool].build(memory)
        section = _Running(self, task, pool, workers, memory)
        return await section.run()

    def check_budget(self) -> None:
        """Raise `LimitError` when nothing more may be paid."""
        if self.budget is not None and self.account.paid >= self.budget:
            raise LimitError(
                f"the budget of {dollars(self.budget)} is spent; the same command with a larger one goes on from here",
                limit="usd",
                needed=self.account.paid,
                left=Decimal(0),
            )


@dataclass(frozen=True)
class _Part:
    """What a system is run on: the test, or what is learned from."""

    name: str
    decides: tuple[str, ...]
    """What decides its rows beside what decides every row of the section."""
    repeats: int = 1


class _Running:
    """One section on its way."""

    def __init__(self, bench: Bench, task: str, pool: str, workers: WorkerPool, memory: Memory) -> None:
        self.bench = bench
        self.task = task
        self.pool = pool
        settings = bench.settings
        self.slots = asyncio.Semaphore(settings.concurrency)
        self.learning: list[Row] = []
        tested = self._task(settings.tasks[task], memory, bench.limit)
        learning = self._task(settings.calibration, memory) if settings.calibration else None
        self.arena = Arena(
            pool=workers,
            task=tested,
            learning=_apart(learning, tested) if learning else None,
            record=self.learn,
            model=memory.model,
            seed=settings.seed,
            account=bench.account,
        )
        learned = self.arena.learning.samples if self.arena.learning else ()
        self.shared = (
            settings.pools[pool].identity,
            *(sample.model_dump_json() for sample in learned),
            str(settings.seed),
            wording_version(),
        )
        """What decides every row of the section."""

    def _task(self, entry: TaskSettings, memory: Memory, limit: int | None = None) -> Task:
        """A task whose judge remembers its replies, and is paid from the bench's account."""
        return self.bench.account.counting(entry.build(limit, model=memory.model))

    async def run(self) -> Section:
        """Its systems one after the other, each on many samples at once."""
        if self.bench.settings.pools[self.pool].cards == "measured":
            found = {worker: calibration.measured(rows) for worker, rows in (await each_alone(self.arena)).items()}
            self.arena = replace(self.arena, pool=calibration.with_cards(self.arena.pool, found))
        cards = [card.model_dump_json(include={"name", "accuracy", "latency"}) for card in self.arena.pool.cards]
        settings = self.bench.settings
        tested = _Part(self.task, (settings.tasks[self.task].identity, *cards), settings.repeats)
        entrants: dict[str, Entrant] = {}
        for name, entry in settings.systems.items():
            if entry.pools and self.pool not in entry.pools:
                continue
            for system in await entry.ready(name, self.arena):
                rows = await self.record(system, self.arena.task, tested)
                entrants[system.name] = Entrant(system, tuple(rows))
                self.arena.ran[system.name] = rows
        models = {name: worker.model.name for name, worker in self.arena.pool.items()}
        return Section(self.task, self.pool, models, tuple(entrants.values()), tuple(self.learning))

    async def learn(self, system: System, task: Task) -> list[Row]:
        """The rows of a system on samples to learn from."""
        entry = self.bench.settings.calibration
        assert entry is not None  # else there is nothing to learn from
        rows = await self.record(system, task, _Part("calibration", (entry.identity,)))
        known = {row.key for row in self.learning}
        self.learning += [row for row in rows if row.key not in known]
        return rows

    async def record(self, system: System, task: Task, part: _Part) -> list[Row]:
        """The rows of a system on a task, in the order of its samples; those that are missing are made."""
        wanted = {
            self._key(system, part, sample, repeat): sample for sample in task.samples for repeat in range(part.repeats)
        }
        rows: dict[Key, Row] = {}

        async def make(key: Key, sample: Sample) -> None:
            row = self.bench.results.find(key)
            if row is None:
                async with self.slots:
                    self.bench.check_budget()
                    row = await self._made(system, task, sample, key)
                self.bench.results.add(row)
            rows[key] = row
            self.bench.on_row(row, len(rows), len(wanted))

        try:
            async with asyncio.TaskGroup() as group:
                for key, sample in wanted.items():
                    group.create_task(make(key, sample))
        except* ConductorError as failed:
            raise failed.exceptions[0] from None
        return [rows[key] for key in wanted]

    def _key(self, system: System, part: _Part, sample: Sample, repeat: int) -> Key:
        return Key(
            pool=self.pool,
            task=part.name,
            system=system.name,
            sample=sample.id,
            repeat=repeat,
            settings=fingerprint(*self.shared, *part.decides, system.identity, sample.model_dump_json()),
        )

    async def _made(self, system: System, task: Task, sample: Sample, key: Key) -> Row:
        try:
            return await _row(key, task, sample, await system.answer(sample, key.repeat))
        except ConfigError:
            raise
        except ConductorError as error:
            return Row(key=key, domain=sample.domain, depth=sample.depth, value=0.0, error=str(error))


def _apart(learning: Task, tested: Task) -> Task:
    """`learning` without the questions of the test.

    Raises:
        ConfigError: nothing is left of it.
    """
    asked = {sample.question for sample in tested.samples}
    if asked.issuperset(sample.question for sample in learning.samples):
        raise ConfigError(f"every question of [calibration] is in {tested.name!r} too; learn from another split")
    return learning.where(lambda sample: sample.question not in asked)


async def _row(key: Key, task: Task, sample: Sample, reply: Reply) -> Row:
    errors = [trace.error or "no answer" for trace in reply.traces if trace.completion is None]
    score = await task.score(sample, reply.text) if reply.text else wrong(None, "there is no reply")
    ran = [result for trace in reply.traces for result in trace.results() if result.status != "skipped"]
    return Row(
        key=key,
        domain=sample.domain,
        depth=sample.depth,
        value=score.value,
        answer=score.answer,
        text=reply.text,
        error=None if reply.text else "; ".join(errors),
        valid=_valid([one.plan for trace in reply.traces for one in trace.rounds]),
        steps=len(ran),
        workers=tuple(result.step.worker for result in ran),
        choice=reply.choice,
        usage=total(trace.usage for trace in reply.traces),
        seconds=max((trace.latency for trace in reply.traces), default=0.0),
    )


def _valid(plans: list[PlanRecord]) -> bool | None:
    """Whether the first plan that was written could be run as it stood; `None` when none was asked for."""
    asked = [plan for plan in plans if plan.source in ("planner", "fallback")]
    return None if not asked else asked[0].source == "planner" and not (asked[0].errors or asked[0].repairs)
