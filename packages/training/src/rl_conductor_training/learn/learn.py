"""`learn`: explores workflows over a pool, learns from the results, and proves it on held-out questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from rl_conductor._internal.jsonl import write_value
from rl_conductor._internal.version import package_version
from rl_conductor.agents import DelegatingModel
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.config.discovery import from_file
from rl_conductor.config.learned_folder import write_conductor_folder
from rl_conductor.errors import ConfigError, LimitError
from rl_conductor.models.cached import CachedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import AnyWorker, WorkerPool
from rl_conductor.pool.pool_file import read_pool_file
from rl_conductor.pool.worker import Worker
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.workflow import AccessMode, Workflow
from rl_conductor_training.learn.candidates import describe, single_workers
from rl_conductor_training.learn.data import LearnData, split_task
from rl_conductor_training.learn.estimate import CostEstimate, add_search, estimate_cost
from rl_conductor_training.learn.experience import Experience, ExperienceRow, fingerprint_workers
from rl_conductor_training.learn.explore import Exploration, explore, propose, score_table, shuffled
from rl_conductor_training.learn.gate import Gate, measure_room
from rl_conductor_training.learn.heldout import prove
from rl_conductor_training.learn.learners.base import Learner, Lessons, SearchingLearner
from rl_conductor_training.learn.learners.examples import NearestExamples
from rl_conductor_training.learn.learners.fixed import BestSingle, FixedWorkflow
from rl_conductor_training.learn.learners.linear import LinearSelector
from rl_conductor_training.learn.production import add_production_rows, liked_workflows
from rl_conductor_training.learn.record import LearnRecord, Proof
from rl_conductor_training.learn.report import write_report
from rl_conductor_training.learn.runner import Runner, SharedBudget
from rl_conductor_training.learn.stored_runs import RatedWorkflow
from rl_conductor_training.tasks import Task, load_task
from rl_conductor_training.workers.source import cache_version

PROPOSING, EXPLORING, VALIDATING, SEARCHING = 0.1, 0.5, 0.65, 0.8
"""Shares of the caps that are spent at most when the planner's proposals, exploration, validation and the learners' own
search end; the rest is for the proof."""
EXPERIENCE_FILE, REPLIES_FILE, OPENING_FILE = "experience.jsonl", "replies.sqlite", "heldout.json"

Pool = WorkerPool | Mapping[str, AnyWorker] | Path | str
Production = Callable[[WorkerPool], Sequence[RatedWorkflow]]
Progress = Callable[[str, ExperienceRow | None], None]
"""Called with the name of the stage, and with each new row of experience."""


@dataclass(frozen=True, kw_only=True)
class LearnSettings:
    """Settings of a learning run other than the task, the pool and the budget."""

    seed: int = 0
    concurrency: int = 4
    """Maximum questions at the same time."""
    max_steps: int = 3
    learners: tuple[Callable[[], Learner], ...] = (BestSingle, FixedWorkflow, LinearSelector, NearestExamples)
    """Creates the learners to compare; the first two are the baselines."""


async def learn(
    task: Task | str,
    pool: Pool,
    *,
    out: str | Path,
    budget: Limits | None = None,
    planner: Planner | None = None,
    settings: LearnSettings | None = None,
    production: Production = lambda _pool: (),
    on_estimate: Callable[[CostEstimate], None] = lambda _estimate: None,
    on_progress: Progress = lambda _stage, _row: None,
) -> LearnRecord:
    """Learns a conductor for a pool and a task, and writes it to a folder that `Conductor.load` reads.

    Everything is stored in the folder as it arrives, so that the same call resumes an interrupted run.

    Args:
        task: a task, or its name as for `load_task`, such as `jsonl:questions.jsonl`.
        pool: the workers, or the path of a pool file.
        out: the folder.
        budget: hard caps: `usd`, `tokens`, `calls` and `seconds`. What earlier processes of the same run spent counts,
            except for their time.
        planner: the prompted planner; by default that of the pool file, or the model of the first worker.
        settings: the seed, the concurrency and the learners.
        production: returns rated production runs of the pool on questions of the task; see `learn_from_runs`.
        on_estimate: called with the expected cost before anything is spent.
        on_progress: called as stages begin and rows arrive.

    Raises:
        ConfigError: the task is too small, or a cap in dollars can't be enforced.
        LimitError: the caps are too low to compare the workers.
    """
    workspace = open_workspace(pool, planner, Path(out))
    run = _LearnRun(
        task=load_task(task) if isinstance(task, str) else task,
        workspace=workspace,
        limits=budget or Limits(),
        settings=settings or LearnSettings(),
        on_progress=on_progress,
        rated=production(workspace.conductor.pool),
    )
    on_estimate(run.estimate)
    try:
        return await run.run()
    finally:
        await run.runner.conductor.aclose()


@dataclass(frozen=True)
class Workspace:
    """The folder, and the pool and planner whose replies are cached there."""

    folder: Path
    pool_file: Path | None
    conductor: Conductor
    workers: Mapping[str, str]
    """Fingerprints of the workers."""


def open_workspace(pool: Pool, planner: Planner | None, folder: Path) -> Workspace:
    pool_file: Path | None = None
    versions: dict[str, str] = {}
    access: AccessMode = "binary"
    if isinstance(pool, str | Path):
        pool_file = Path(pool)
        content = read_pool_file(pool_file)
        discovered = from_file(content, "")
        versions = {name: cache_version(entry) for name, entry in content.workers.items()}
        planner, access = planner or discovered.planner, discovered.access
        pool = discovered.pool
    workers = pool if isinstance(pool, WorkerPool) else WorkerPool(pool)
    planner = planner or Planner.from_worker(next(iter(workers.values())))
    path = folder / REPLIES_FILE
    cached = WorkerPool(_cache_worker(worker, path, versions.get(name, "")) for name, worker in workers.items())
    planner = replace(planner, model=CachedModel(planner.model, path, version="planner"))
    conductor = Conductor(planner, cached, access=access, keep_prompts=False)
    return Workspace(folder, pool_file, conductor, fingerprint_workers(cached, versions))


def _cache_worker(worker: Worker, path: Path, version: str) -> Worker:
    """Caches the replies of a worker; of a delegating one, the replies of its base model only."""
    if isinstance(worker.model, DelegatingModel):
        base = CachedModel(worker.model.base, path, version=version)
        return replace(worker, model=worker.model.with_base(base))
    return replace(worker, model=CachedModel(worker.model, path, version=f"{worker.name} {version}"))


@dataclass
class _LearnRun:
    """One process of a learning run."""

    task: Task
    workspace: Workspace
    limits: Limits
    settings: LearnSettings
    on_progress: Progress
    rated: Sequence[RatedWorkflow] = ()
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        folder, conductor = self.workspace.folder, self.workspace.conductor
        self._check_prices()
        self.data = split_task(self.task, seed=self.settings.seed, opening_file=folder / OPENING_FILE)
        self.experience = Experience(folder / EXPERIENCE_FILE)
        self.budget = SharedBudget(self.limits, Amount(*self.experience.total_spending()))
        self.stage = ""
        self.runner = Runner(
            task=self.task,
            conductor=conductor,
            experience=self.experience,
            workers=self.workspace.workers,
            concurrency=self.settings.concurrency,
            on_row=lambda row: self.on_progress(self.stage, row),
        )
        add_production_rows(self.runner, self.rated)
        self.estimate = estimate_cost(
            self.data,
            conductor.pool,
            max_steps=self.settings.max_steps,
            seed=self.settings.seed,
            concurrency=self.settings.concurrency,
        )
        self.learners = [create() for create in self.settings.learners]
        for learner in self.learners:
            if isinstance(learner, SearchingLearner):
                self.estimate = add_search(self.estimate, learner.max_runs)

    def _check_prices(self) -> None:
        pool = self.workspace.conductor.pool
        unpriced = [
            name
            for name, worker in pool.items()
            if worker.card.price is None and not worker.model.capabilities.delegates
        ]
        if self.limits.usd is not None and unpriced:
            raise ConfigError(
                f"usd={self.limits.usd} can't be enforced: the price of worker {unpriced[0]!r} is unknown; "
                "give it a price, or cap the tokens instead"
            )

    async def run(self) -> LearnRecord:
        """Runs all stages and writes the folder."""
        order = shuffled(self.data.train.samples, self.settings.seed)
        self._begin("asking the planner for proposals", PROPOSING)
        proposals = await propose(self.runner, order)
        self._begin("exploring", EXPLORING)
        exploration = await explore(
            self.runner,
            order,
            [*liked_workflows(self.rated, order), *proposals],
            seed=self.settings.seed,
            max_steps=self.settings.max_steps,
        )
        singles = single_workers(list(self.workspace.conductor.pool))
        lessons = await self._validate(exploration, singles)
        groups = [self.data.groups[sample.id] for sample in lessons.table.samples]
        gate = measure_room(lessons.table, lessons.singles, lessons.workflows, groups)
        learners = self.learners
        for learner in learners:
            learner.fit(lessons)
        proof = None
        if gate.is_open:
            await self._search(learners)
            self._begin("proving on held-out questions", 1.0)
            proof = await prove(self.runner, self.data, learners, lessons)
            if self.runner.is_exhausted:
                self._note_cap("the proof", f"it covers {proof.questions} held-out questions")
        record = self._record(exploration, len(proposals), lessons, gate, proof)
        self._write(record, learners)
        return record

    async def _search(self, learners: Sequence[Learner]) -> None:
        """Lets those learners search that need runs of their own."""
        for learner in learners:
            if isinstance(learner, SearchingLearner):
                self._begin(f"searching for {learner.name}", SEARCHING)
                await learner.search(self.runner, self.data.train.samples, self.data.validation.samples)
                if self.runner.is_exhausted:
                    self._note_cap(f"the search for {learner.name}", "it used what was found until then")

    def _begin(self, stage: str, share: float) -> None:
        self.stage = stage
        self.runner.begin_stage(self.budget.stage(share))
        self.on_progress(stage, None)

    def _note_cap(self, stage: str, consequence: str) -> None:
        self.notes.append(f"a cap ended {stage} early: {consequence}")

    async def _validate(self, exploration: Exploration, singles: list[Workflow]) -> Lessons:
        """Runs the portfolio on the validation questions, and returns what the learners learn from.

        Raises:
            LimitError: the caps did not even suffice to compare the single workers.
        """
        if self.runner.is_exhausted:
            self._note_cap("exploration", f"{len(self.experience)} runs were made")
        self._begin("validating", VALIDATING)
        workflows = list(dict.fromkeys([*singles, *exploration.portfolio]))
        samples = [*self.data.train.samples, *self.data.validation.samples]
        await self.runner.run_workflows((sample, workflow) for sample in samples for workflow in workflows)
        if self.runner.is_exhausted:
            self._note_cap("validation", "only questions on which all workflows ran are used")
        table = score_table(self.runner, samples)
        complete = [sample for sample in samples if all((workflow, sample.id) in table.rows for workflow in workflows)]
        if not complete:
            raise LimitError(
                "the caps are too low to compare the workers on a single question; "
                f"about {self.estimate.tokens:,} tokens and {self.estimate.minutes:.0f} minutes are needed",
                limit="tokens" if self.limits.seconds is None else "seconds",
                needed=self.estimate.tokens,
                remaining=0,
            )
        return Lessons(score_table(self.runner, complete), exploration.portfolio, singles)

    def _record(
        self, exploration: Exploration, proposals: int, lessons: Lessons, gate: Gate, proof: Proof | None
    ) -> LearnRecord:
        spending, data = self.budget.total.spent, self.data
        better = gate.fixed_over_single.low > 0
        return LearnRecord(
            task=self.task.name,
            seed=self.settings.seed,
            created=datetime.now(UTC),
            package=package_version(),
            limits=self.limits,
            estimate=self.estimate,
            questions={
                "training": len(data.train.samples),
                "validation": len(data.validation.samples),
                "held-out": len(data.heldout.task.samples),
            },
            groups=len(set(data.groups.values())),
            candidates=len(exploration.candidates),
            proposals=proposals,
            portfolio=tuple(map(describe, lessons.workflows)),
            gate=gate,
            proof=proof,
            recommended=proof.recommended if proof else FixedWorkflow.name if better else BestSingle.name,
            notes=tuple(self.notes),
            calls=spending.calls,
            tokens=spending.tokens,
            usd=spending.usd,
            seconds=self.budget.elapsed,
        )

    def _write(self, record: LearnRecord, learners: list[Learner]) -> None:
        """Writes the conductor of the recommended system, the record and the report."""
        workspace = self.workspace
        recommended = next((learner for learner in learners if learner.name == record.recommended), None)
        conductor = workspace.conductor if recommended is None else recommended.apply(workspace.conductor)
        write_conductor_folder(
            workspace.folder,
            method=record.recommended,
            pool=workspace.conductor.pool,
            planner=conductor.planner,
            selector=conductor.selector,
            pool_file=workspace.pool_file,
            instructions=getattr(recommended, "instructions", ""),
            descriptions=getattr(recommended, "descriptions", {}),
        )
        write_value(workspace.folder / "record.json", record)
        write_report(record, workspace.folder / "report.html")


__all__ = ["LearnData", "LearnSettings", "learn"]
