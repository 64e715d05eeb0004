"""`Bench`: runs every system on every sample and stores each result as it arrives, so that a bench can resume."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from decimal import Decimal

from rl_conductor._internal.formatting import dollars
from rl_conductor._internal.paths import cache_folder
from rl_conductor.errors import ConductorError, ConfigError, LimitError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.prompting.prompt_version import prompt_version
from rl_conductor.scoring import wrong
from rl_conductor.trace.trace import PlanRecord
from rl_conductor.types import total
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.bench import calibration
from rl_conductor_training.bench.context import BenchContext, UsageMeter
from rl_conductor_training.bench.results import ResultFile, ResultKey, SampleResult
from rl_conductor_training.bench.settings import BenchSettings, TaskSettings
from rl_conductor_training.bench.systems.base import Reply, System, SystemEntry
from rl_conductor_training.bench.systems.single_model import evaluate_workers
from rl_conductor_training.concurrency import run_together
from rl_conductor_training.cut_off_replies import count_finishes
from rl_conductor_training.row_file import fingerprint
from rl_conductor_training.spending import check_prices
from rl_conductor_training.tasks import Sample, Task
from rl_conductor_training.tasks.groups import group_of, hash_question, shared_questions
from rl_conductor_training.workers.reply_cache import ReplyCache


@dataclass(frozen=True)
class SystemResult:
    """A system and its results on one task and pool."""

    system: System
    results: tuple[SampleResult, ...]


@dataclass(frozen=True)
class TaskResult:
    """The results of all systems on one task and pool."""

    task: str
    pool: str
    models: dict[str, str]
    """Model names by worker."""
    systems: tuple[SystemResult, ...]
    calibration: tuple[SampleResult, ...] = ()
    """Results on the calibration task, from which systems have learned."""
    left_out: int = 0
    """Number of questions that were left out because a system learned from them before the bench."""


@dataclass
class Bench:
    """A run of a bench file."""

    settings: BenchSettings
    results: ResultFile
    limit: int | None = None
    """Maximum number of samples per task, in addition to the limits of the settings."""
    budget: Decimal | None = None
    """US dollars; no sample is started once this much is paid."""
    on_row: Callable[[SampleResult, int, int], None] = lambda _result, _finished, _total: None
    """Called with each result, the number of the system's results so far and their total number."""
    meter: UsageMeter = field(default_factory=UsageMeter)
    """Usage of this process, including cached calls."""

    async def run(self) -> list[TaskResult]:
        """Runs all systems on every pool and task; results that are in the file already are reused.

        Raises:
            ConfigError: the settings contradict each other, or a price is unknown that the budget needs.
            LimitError: the budget is spent.
        """
        path = self.settings.cache or cache_folder() / "bench-replies.sqlite"
        async with aclosing(ReplyCache(path)) as cache:
            return [
                await self._run_task(task, pool, cache) for pool in self.settings.pools for task in self.settings.tasks
            ]

    async def _run_task(self, task: str, pool: str, cache: ReplyCache) -> TaskResult:
        workers = self.settings.pools[pool].build(cache)
        check_prices(workers, Limits(usd=self.budget))
        return await _TaskRun(self, task, pool, workers, cache).run()

    def check_budget(self) -> None:
        """Checks that the budget can be kept and is not spent.

        Raises:
            ConfigError: a call had no known price.
            LimitError: the budget is spent.
        """
        if self.budget is None:
            return
        if self.meter.has_unknown_price:
            raise ConfigError(
                f"usd={self.budget} can't be enforced: a model was called whose price is unknown, such as that of a "
                'planner or a judge; write its "price" beside its "model", or omit the budget'
            )
        if self.meter.paid.cost >= self.budget:
            raise LimitError(
                f"the budget of {dollars(self.budget)} is spent; the same command with a larger one goes on from here",
                limit="usd",
                needed=self.meter.paid.cost,
                remaining=Decimal(0),
            )


@dataclass(frozen=True)
class _SampleSet:
    """The samples that a system runs on: the test or the calibration task."""

    name: str
    identity: tuple[str, ...]
    """The settings that affect its results, besides those that the whole run shares."""
    repeats: int = 1


class _TaskRun:
    """Runs all systems on one task and pool."""

    def __init__(self, bench: Bench, task: str, pool: str, workers: WorkerPool, cache: ReplyCache) -> None:
        self.bench = bench
        self.task = task
        self.pool = pool
        settings = bench.settings
        self.slots = asyncio.Semaphore(settings.concurrency)
        self.calibration_results: list[SampleResult] = []
        whole = self._build_task(settings.tasks[task], cache, bench.limit)
        test = _exclude_learned_questions(whole, settings.systems)
        self.left_out = len(whole.samples) - len(test.samples)
        calibration_task = self._build_task(settings.calibration, cache) if settings.calibration else None
        self.context = BenchContext(
            pool=workers,
            task=test,
            calibration=_exclude_test_questions(calibration_task, test) if calibration_task else None,
            collect_results=self.collect_calibration,
            build_model=cache.build_model,
            seed=settings.seed,
            meter=bench.meter,
        )
        calibration_samples = self.context.calibration.samples if self.context.calibration else ()
        self.shared_identity = (
            settings.pools[pool].identity,
            *(sample.model_dump_json() for sample in calibration_samples),
            str(settings.seed),
            prompt_version(),
        )
        """The settings that affect every result of this run."""

    def _build_task(self, entry: TaskSettings, cache: ReplyCache, limit: int | None = None) -> Task:
        """Loads a task and meters the calls of its judge, which are cached."""
        return self.bench.meter.meter_scoring(entry.build(limit, build_model=cache.build_model))

    async def run(self) -> TaskResult:
        """Runs the systems one after the other, each on several samples at once."""
        if self.bench.settings.pools[self.pool].cards == "measured":
            measurements = {
                worker: calibration.measure_worker(results)
                for worker, results in (await evaluate_workers(self.context)).items()
            }
            self.context = replace(self.context, pool=calibration.apply_measurements(self.context.pool, measurements))
        cards = [card.model_dump_json(include={"name", "accuracy", "latency"}) for card in self.context.pool.cards]
        settings = self.bench.settings
        test = _SampleSet(self.task, (settings.tasks[self.task].identity, *cards), settings.repeats)
        systems: dict[str, SystemResult] = {}
        for name, entry in settings.systems.items():
            if entry.pools and self.pool not in entry.pools:
                continue
            for system in await entry.build(name, self.context):
                results = await self.collect_results(system, self.context.task, test)
                systems[system.name] = SystemResult(system, tuple(results))
                self.context.finished[system.name] = results
        models = {name: worker.model.name for name, worker in self.context.pool.items()}
        calibration_results = tuple(self.calibration_results)
        return TaskResult(self.task, self.pool, models, tuple(systems.values()), calibration_results, self.left_out)

    async def collect_calibration(self, system: System, task: Task) -> list[SampleResult]:
        """Returns the results of a system on calibration samples, and keeps them for the report."""
        entry = self.bench.settings.calibration
        assert entry is not None  # systems get the samples from the calibration task
        results = await self.collect_results(system, task, _SampleSet("calibration", (entry.identity,)))
        known_keys = {result.key for result in self.calibration_results}
        self.calibration_results += [result for result in results if result.key not in known_keys]
        return results

    async def collect_results(self, system: System, task: Task, sample_set: _SampleSet) -> list[SampleResult]:
        """Returns the results of a system on a task in the order of its samples, running those that are missing."""
        samples = {
            self._key(system, sample_set, sample, repeat): sample
            for sample in task.samples
            for repeat in range(sample_set.repeats)
        }
        results: dict[ResultKey, SampleResult] = {}

        async def collect(key: ResultKey, sample: Sample) -> None:
            result = self.bench.results.find(key)
            if result is None:
                async with self.slots:
                    self.bench.check_budget()
                    result = await self._run_sample(system, task, sample, key)
                self.bench.results.append(result)
            results[key] = result
            self.bench.on_row(result, len(results), len(samples))

        await run_together(collect(key, sample) for key, sample in samples.items())
        return [results[key] for key in samples]

    def _key(self, system: System, sample_set: _SampleSet, sample: Sample, repeat: int) -> ResultKey:
        return ResultKey(
            pool=self.pool,
            task=sample_set.name,
            system=system.name,
            sample=sample.id,
            repeat=repeat,
            settings=fingerprint(
                *self.shared_identity, *sample_set.identity, system.identity, sample.model_dump_json()
            ),
        )

    async def _run_sample(self, system: System, task: Task, sample: Sample, key: ResultKey) -> SampleResult:
        try:
            return await _score_reply(key, task, sample, await system.answer(sample, key.repeat))
        except ConfigError:
            raise
        except ConductorError as error:
            return SampleResult(
                key=key,
                domain=sample.domain,
                depth=sample.depth,
                group=group_of(sample),
                value=0.0,
                error=str(error),
            )


def _exclude_learned_questions(test: Task, systems: Mapping[str, SystemEntry]) -> Task:
    """Removes the questions from which a system learned before the bench, for all systems alike.

    Raises:
        ConfigError: no question remains.
    """
    learned = {name: entry.learned_questions() for name, entry in systems.items()}
    hashes = frozenset().union(*learned.values())
    if hashes.issuperset(hash_question(sample.question) for sample in test.samples):
        names = " and ".join(repr(name) for name, own in learned.items() if own)
        raise ConfigError(f"{names} learned from every question of {test.name!r}; compare on others")
    return test.where(lambda sample: hash_question(sample.question) not in hashes) if hashes else test


def _exclude_test_questions(calibration_task: Task, test: Task) -> Task:
    """Removes the questions of the test from the calibration task.

    Raises:
        ConfigError: no question remains.
    """
    shared = set(shared_questions(calibration_task.samples, test.samples))
    if shared.issuperset(sample.question for sample in calibration_task.samples):
        raise ConfigError(f"every question of [calibration] is in {test.name!r} too; learn from another split")
    return calibration_task.where(lambda sample: sample.question not in shared)


async def _score_reply(key: ResultKey, task: Task, sample: Sample, reply: Reply) -> SampleResult:
    errors = [trace.error or "no answer" for trace in reply.traces if trace.completion is None]
    score = await task.score(sample, reply.text) if reply.text else wrong(None, "there is no reply")
    steps = [result for trace in reply.traces for result in trace.results if result.status != "skipped"]
    plan = _find_first_plan(reply)
    return SampleResult(
        key=key,
        domain=sample.domain,
        depth=sample.depth,
        group=group_of(sample),
        value=score.value,
        answer=score.answer,
        undecided=score.undecided,
        text=reply.text,
        error=None if reply.text else "; ".join(errors),
        valid=None if plan is None else plan.source == "planner" and not (plan.errors or plan.repairs),
        plan_problem="" if plan is None else next(iter((*plan.errors, *plan.repairs)), ""),
        steps=len(steps),
        workers=tuple(result.step.worker for result in steps),
        choice=reply.choice,
        finishes=count_finishes(call for trace in reply.traces for call in trace.calls),
        usage=total(trace.usage for trace in reply.traces),
        seconds=max((trace.latency for trace in reply.traces), default=0.0),
    )


def _find_first_plan(reply: Reply) -> PlanRecord | None:
    """Returns the first plan of a planner; `None` without a planner."""
    plans = (record.plan for trace in reply.traces for record in trace.rounds)
    return next((plan for plan in plans if plan.source in ("planner", "fallback")), None)
