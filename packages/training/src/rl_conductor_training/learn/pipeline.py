"""`learn`: explores workflows over a pool, learns from the results, and proves it on held-out questions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rl_conductor._internal.version import package_version
from rl_conductor.calls.budget import Amount
from rl_conductor.config.learned_folder import EXPERIENCE_FILE, OPENING_FILE
from rl_conductor.errors import LimitError
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.learn.data import split_task
from rl_conductor_training.learn.estimate import estimate_cost
from rl_conductor_training.learn.evaluation.comparison import BASELINES
from rl_conductor_training.learn.evaluation.gate import Gate, measure_room
from rl_conductor_training.learn.evaluation.proof import prove
from rl_conductor_training.learn.evaluation.validation import validate_learners
from rl_conductor_training.learn.experience import Experience, ExperienceRow
from rl_conductor_training.learn.learners.base import Learner, Lessons, SearchingLearner, SearchNeeds
from rl_conductor_training.learn.learners.fixed import BestWorker
from rl_conductor_training.learn.production.rows import add_production_rows, liked_workflows
from rl_conductor_training.learn.production.stored_runs import RatedWorkflow
from rl_conductor_training.learn.record import LearnRecord, Proof, ValidationResult
from rl_conductor_training.learn.run_spending import RunSpending
from rl_conductor_training.learn.runner import Runner, SharedBudget
from rl_conductor_training.learn.search.candidates import build_candidates, describe, descriptions, single_workers
from rl_conductor_training.learn.search.costs import Cost, describe_failures, find_working, measure_costs
from rl_conductor_training.learn.search.explore import (
    PROPOSALS,
    Exploration,
    PlannedSearch,
    explore,
    explore_further,
    propose,
    score_table,
    shuffled,
)
from rl_conductor_training.learn.search.plan import (
    CAP_NAMES,
    MEASURING,
    PROPOSING,
    SearchPlan,
    SearchSizes,
    caps_needed,
    caps_too_low,
    describe_need,
    load_plan,
    plan_search,
    store_plan,
)
from rl_conductor_training.learn.settings import LearnSettings
from rl_conductor_training.learn.workspace import Pool, Workspace, open_workspace
from rl_conductor_training.output_folder import lock_folder
from rl_conductor_training.row_file import fingerprint
from rl_conductor_training.spending import CostEstimate, check_judge_price, check_prices
from rl_conductor_training.tasks import Sample, Task

PILOT = 4
"""Number of training questions on which the cost of each worker is measured."""
PILOT_PROPOSALS = 2
"""Number of plans from which the cost of a plan is measured."""
PLAN_FILE = "plan.json"

Production = Callable[[WorkerPool], Sequence[RatedWorkflow]]


class LearnProgress(NamedTuple):
    """The state of a learning run when a stage begins or a row arrives."""

    stage: str
    spending: Amount
    """Spending of all processes of this run; replies from the cache cost nothing."""
    row: ExperienceRow | None
    """The new row of experience, if there is one."""


OnProgress = Callable[[LearnProgress], None]


async def learn(
    task: Task | str,
    pool: Pool,
    *,
    out: str | Path,
    heldout: Task | str | None = None,
    budget: Limits | None = None,
    planner: Planner | None = None,
    settings: LearnSettings | None = None,
    production: Production = lambda _pool: (),
    on_estimate: Callable[[CostEstimate], None] = lambda _estimate: None,
    on_progress: OnProgress = lambda _: None,
) -> LearnRecord:
    """Learns a conductor for a pool and a task, and writes it to a folder that `Conductor.load` reads.

    Everything is stored in the folder as it arrives, so that the same call resumes an interrupted run.

    Args:
        task: a task, its name as for `load_task`, or a file of questions such as `questions.jsonl` or `questions.csv`.
        pool: the workers, or the path of a pool file.
        out: the folder.
        heldout: held-out questions of one's own; by default, a part of `task` is held out.
        budget: hard caps: `usd`, `tokens`, `calls` and `seconds`. What earlier processes of the same run spent counts,
            except for their time; other workers or questions make it another run.
        planner: the prompted planner; by default that of the pool file, or the model of the first worker
            that can plan.
        settings: the seed, the concurrency and the learners.
        production: returns rated production runs of the pool on questions of the task; see `learn_from_runs`.
        on_estimate: called with the expected cost, which is within the caps, before anything is spent.
        on_progress: called as stages begin and rows arrive.

    Raises:
        ConfigError: the task is too small or has a held-out question, a cap in dollars can't be enforced, or another
            process uses the folder.
        LimitError: the caps are too low to compare the workers, or for any held-out question.
    """
    with lock_folder(Path(out)):
        workspace = open_workspace(pool, planner, Path(out))
        rated = production(workspace.conductor.pool)
        settings, limits = settings or LearnSettings(), budget or Limits()
        run = _LearnRun(task, heldout, workspace, limits, settings, on_progress, rated)
        on_estimate(run.expected)
        try:
            return await run.run()
        finally:
            await run.runner.aclose()


@dataclass
class Findings:
    """The results of the stages."""

    search: PlannedSearch
    exploration: Exploration
    lessons: Lessons
    gate: Gate
    validation: list[ValidationResult] = field(default_factory=list)
    proof: Proof | None = None


@dataclass
class _LearnRun:
    """One process of a learning run."""

    task: Task | str
    heldout: Task | str | None
    workspace: Workspace
    limits: Limits
    settings: LearnSettings
    on_progress: OnProgress
    rated: Sequence[RatedWorkflow] = ()
    notes: list[str] = field(default_factory=list)
    was_cut_by_cap: bool = False

    def __post_init__(self) -> None:
        folder, conductor = self.workspace.folder, self.workspace.conductor
        self.plan_file = folder / PLAN_FILE
        check_prices(conductor.pool, self.limits)
        opening_file = folder / OPENING_FILE
        self.data = split_task(self.task, seed=self.settings.seed, opening_file=opening_file, heldout=self.heldout)
        check_judge_price(self.data.task, self.limits)
        self.notes += [*self.workspace.notes, *self.data.notes]
        self.experience = Experience(folder / EXPERIENCE_FILE)
        run_key = fingerprint(*self.workspace.workers.values(), *map(Sample.model_dump_json, self.data.task.samples))
        self.spending = RunSpending(folder, self.experience, run_key)
        self.budget = SharedBudget(self.limits, self.spending.amount)
        self.stage = ""
        self.runner = Runner(
            task=self.data.task,
            conductor=conductor,
            experience=self.experience,
            workers=self.workspace.workers,
            concurrency=self.settings.concurrency,
            on_row=self._add_row,
            on_status=lambda status: self._report(f"{self.stage}: {status}"),
        )
        add_production_rows(self.runner, self.rated)
        self.learners = [create() for create in self.settings.learners]
        self.needs = SearchNeeds.of(self.learners)
        inputs = (self.data, conductor, self.settings, self.needs)
        self.estimate, self.expected = estimate_cost(*inputs, Limits()), estimate_cost(*inputs, self.limits)

    async def run(self) -> LearnRecord:
        """Runs all stages and writes the folder."""
        self.order = shuffled(self.data.train.samples, self.settings.seed)
        self.singles = single_workers(list(self.workspace.conductor.pool))
        search = await self._plan_search()
        exploration, plan = await self._explore(search)
        lessons, training = await self._validate(exploration, plan)
        groups = [self.data.groups[sample.id] for sample in lessons.table.samples]
        is_whole = not (plan.is_smaller or self.was_cut_by_cap)
        gate = measure_room(lessons.table, lessons.singles, lessons.workflows, groups, is_whole=is_whole)
        findings, learners = Findings(search, exploration, lessons, gate), self.learners
        compares = gate.is_open or not self.settings.requires_room
        if compares:
            findings.validation, learners = await self._choose(lessons, training, plan)
        elif gate.fixed_is_better:
            learners = [learner for learner in learners if learner.name in BASELINES]
        for learner in learners:
            learner.fit(lessons)
        if compares or gate.fixed_is_better:
            self._begin("evaluating on held-out questions", 1.0)
            findings.proof = await prove(self.runner, self.data, learners, lessons, self.notes)
            if findings.proof is None:
                raise self._caps_too_low("to ask every system a single held-out question", plan.thorough)
        record = self._record(findings)
        self.workspace.write(record, learners, self.data)
        return record

    async def _plan_search(self) -> PlannedSearch:
        """Measures the cost of calls, and plans a search that leaves enough for the proof."""
        rows, parallelism = await self._measure_workers()
        workers = find_working(descriptions(self.workspace.conductor.pool), rows)
        self.singles = single_workers([*workers])
        self._begin("asking the planner for proposals", PROPOSING)
        is_capped = any(getattr(self.limits, name) for name in CAP_NAMES)
        proposals = await propose(self.runner, self.order, PILOT_PROPOSALS if is_capped else PROPOSALS)
        costs = measure_costs(rows, proposals.calls, parallelism=parallelism)
        proposed = [*liked_workflows(self.rated, self.order), *proposals.plans]
        examples = [pair for pair in proposed if all(step.worker in workers for step in pair[1].steps)]
        candidates = build_candidates(
            workers,
            [workflow for _, workflow in examples],
            max_steps=self.settings.max_steps,
            seed=self.settings.seed,
        )
        sizes = SearchSizes(
            candidates,
            self.singles,
            train=len(self.order),
            validation=len(self.data.validation.samples),
            heldout=self.data.heldout.size,
            learner_runs=self.needs.runs,
            training_seconds=self.needs.seconds,
        )
        plan = load_plan(self.plan_file, plan_search(sizes, costs, self.limits, self.budget.spending), self._plan_key())
        return PlannedSearch(plan, sizes, costs, candidates, examples, len(proposals.plans))

    async def _explore(self, search: PlannedSearch) -> tuple[Exploration, SearchPlan]:
        """Explores as planned, then as planned anew by the actual costs, then with the rest of the stage's budget."""
        plan, rows, started = search.plan, len(self.experience), self.budget.elapsed
        exploration = await self._explore_plan(search, plan)
        is_measured = len(self.experience) - rows > plan.runs / 2  # otherwise an earlier process took the time for it
        if exploration.is_complete and is_measured and plan.exploration.seconds:
            costs = search.costs.faster((self.budget.elapsed - started) / plan.exploration.seconds)
            plan = store_plan(self.plan_file, plan_search(search.sizes, costs, self.limits, plan.began), plan.key)
            exploration = await self._explore_plan(search, plan)
        if not exploration.is_complete:
            self._note_cap("exploration", f"{len(self.experience)} runs were made")
        elif others := exploration.select_others(search.candidates):
            self._begin("exploring further workflows", plan.exploring)
            exploration = await explore_further(self.runner, self.order, exploration, others, plan)
        return exploration, plan

    async def _explore_plan(self, search: PlannedSearch, plan: SearchPlan) -> Exploration:
        """Explores as planned; runs that were made before are not repeated."""
        self._begin(f"exploring: {plan.summary}", plan.exploring)
        return await explore(self.runner, self.order, search.candidates, search.examples, plan)

    async def _measure_workers(self) -> tuple[dict[str, list[ExperienceRow]], float]:
        """Runs each worker alone on a few questions; returns its rows, and how many calls ran at the same time."""
        pilot = self.order[:PILOT]
        self._begin("measuring the workers", MEASURING)
        created, started = datetime.now(UTC), time.monotonic()
        await self.runner.run_workflows((sample, workflow) for sample in pilot for workflow in self.singles)
        elapsed = time.monotonic() - started
        table = score_table(self.runner, pilot)
        rows = {
            name: [row for sample in pilot if (row := table.rows.get((workflow, sample.id))) is not None]
            for name, workflow in zip(self.workspace.conductor.pool, self.singles, strict=True)
        }
        if not any(rows.values()):
            raise self._caps_too_low("to ask the workers a single question", Cost())
        self.notes += describe_failures(rows)
        # Rows of an earlier process took none of this time.
        seconds = sum(row.seconds for name in rows for row in rows[name] if row.created >= created)
        return rows, seconds / elapsed if elapsed > 1 else 1.0

    def _plan_key(self) -> str:
        """Identifies the purpose of a stored plan, so that another one is made for other caps, workers or questions."""
        settings = f"{self.settings.seed} {self.settings.max_steps} {self.needs.key}"
        tasks = (self.data.train, self.data.validation, self.data.heldout.task)
        questions = [sample.id for task in tasks for sample in task.samples]
        return fingerprint(self.limits.model_dump_json(), settings, *self.workspace.workers.values(), *questions)

    async def _search(self, train: Sequence[Sample], validation: Sequence[Sample], share: float) -> None:
        """Lets those learners search that need runs of their own."""
        for learner in self.learners:
            if isinstance(learner, SearchingLearner):
                self._begin(f"searching for {learner.name}", share)
                await learner.search(self.runner, train, validation)
                if self.runner.is_exhausted:
                    self._note_cap(f"the search for {learner.name}", "it used what was found until then")

    def _begin(self, stage: str, share: float) -> None:
        self.stage = stage
        self.runner.begin_stage(self.budget.stage(share))
        self._report(stage)

    def _report(self, stage: str, row: ExperienceRow | None = None) -> None:
        self.on_progress(LearnProgress(stage, self.budget.total.spent, row))

    def _add_row(self, row: ExperienceRow) -> None:
        if row.sample in self.data.heldout.ids:
            self.data.heldout.record_opening()
        self._report(self.stage, row)

    def _note_cap(self, stage: str, consequence: str) -> None:
        self.was_cut_by_cap = True
        self.notes.append(f"a cap ended {stage} early: {consequence}")

    def _caps_too_low(self, purpose: str, thorough: Cost) -> LimitError:
        needed = caps_needed(thorough, self.estimate, self.budget.largest_call)
        return caps_too_low(purpose, needed, self.limits, self.budget.spending)

    async def _validate(self, exploration: Exploration, plan: SearchPlan) -> tuple[Lessons, Lessons]:
        """Runs the selected workflows on the validation questions; returns all lessons, and those of training alone.

        Raises:
            LimitError: the caps did not even suffice to compare the single workers.
        """
        self._begin("validating", plan.validating)
        workflows = list(dict.fromkeys([*self.singles, *exploration.portfolio]))
        trained = self.order[: plan.rounds[-1].questions]
        samples = [*trained, *self.data.validation.samples]
        await self.runner.run_workflows((sample, workflow) for sample in samples for workflow in workflows)
        if self.runner.is_exhausted:
            self._note_cap("validation", "only questions on which all workflows ran are used")
        table = score_table(self.runner, samples)
        complete = [sample for sample in samples if all((workflow, sample.id) in table.rows for workflow in workflows)]
        if not complete:
            raise self._caps_too_low("to compare the workers on a single question", plan.thorough)
        training = [sample for sample in complete if sample in trained]
        return self._lessons(complete, exploration), self._lessons(training or complete, exploration)

    def _lessons(self, samples: Sequence[Sample], exploration: Exploration) -> Lessons:
        table = score_table(self.runner, samples, with_production=True)
        return Lessons(table, exploration.portfolio, self.singles)

    async def _choose(
        self, lessons: Lessons, training: Lessons, plan: SearchPlan
    ) -> tuple[list[ValidationResult], list[Learner]]:
        """Compares the learners on the validation questions, and returns those that are worth a proof."""
        for learner in self.learners:
            learner.fit(training)
        ids = {sample.id for sample in lessons.table.samples}
        samples = [sample for sample in self.data.validation.samples if sample.id in ids]
        if not samples:
            return [], [learner for learner in self.learners if learner.name in BASELINES]
        if plan.tries_planners:
            await self._search(training.table.samples, samples, plan.searching)
        self._begin("comparing the learners", plan.choosing)
        results = await validate_learners(self.runner, self.learners, samples, tries_planners=plan.tries_planners)
        if self.runner.is_exhausted:
            self._note_cap("validation", "learners without a result are not evaluated on the held-out questions")
        names = {*BASELINES, *(result.name for result in results if result.is_chosen)}
        return results, [learner for learner in self.learners if learner.name in names]

    def _record(self, findings: Findings) -> LearnRecord:
        spending, data = self.budget.total.spent, self.data
        plan, gate, proof = findings.search.plan, findings.gate, findings.proof
        if plan.is_smaller:
            need = describe_need(caps_needed(plan.thorough, self.estimate, self.budget.largest_call), self.limits)
            self.notes.append(f"the caps left room for a smaller search only ({plan.summary}); {need}")
        return LearnRecord(
            task=self.data.task.name,
            seed=self.settings.seed,
            created=datetime.now(UTC),
            package=package_version(),
            limits=self.limits,
            estimate=self.estimate,
            questions=data.sizes,
            groups=len(set(data.groups.values())),
            candidates=findings.exploration.tried,
            proposals=findings.search.proposals,
            portfolio=tuple(map(describe, findings.lessons.workflows)),
            gate=gate,
            validation=tuple(findings.validation),
            proof=proof,
            recommended=proof.recommended if proof else BestWorker.name,
            notes=tuple(self.notes),
            failures=self.runner.find_failures(),
            runs=len(self.runner.added | self.runner.reused),
            reused=len(self.runner.reused),
            calls=spending.calls,
            tokens=spending.tokens,
            usd=spending.usd,
            unpriced_calls=self.spending.unpriced_calls,
            seconds=self.budget.elapsed,
        )
