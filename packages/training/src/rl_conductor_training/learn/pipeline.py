"""`learn`: explores workflows over a pool, learns from the results, and proves it on held-out questions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from rl_conductor._internal.version import package_version
from rl_conductor.config.learned_folder import OPENING_FILE
from rl_conductor.models import Model
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.learn.data import split_task
from rl_conductor_training.learn.estimate import estimate_cost
from rl_conductor_training.learn.evaluation.comparison import summarize_workers
from rl_conductor_training.learn.evaluation.gate import Gate, best_workflow, measure_room
from rl_conductor_training.learn.evaluation.proof import prove
from rl_conductor_training.learn.evaluation.validation import baselines, validate_learners, validate_workflows
from rl_conductor_training.learn.evaluation.wrong_answers import find_wrong_answers
from rl_conductor_training.learn.learn_run import LearnRun, OnProgress
from rl_conductor_training.learn.learners.fixed import BestWorker, CheapestWorker
from rl_conductor_training.learn.production.rows import add_production_rows
from rl_conductor_training.learn.production.stored_runs import RatedWorkflow
from rl_conductor_training.learn.record import LearnRecord, Proof, SystemSummary, ValidationResult, WrongAnswer
from rl_conductor_training.learn.search.candidates import describe
from rl_conductor_training.learn.search.explore import Exploration
from rl_conductor_training.learn.search.plan import SearchPlan, describe_need
from rl_conductor_training.learn.search.stages import PlannedSearch, explore_workflows, measure_workers, prepare_search
from rl_conductor_training.learn.settings import LearnSettings
from rl_conductor_training.learn.workspace import Pool, open_workspace
from rl_conductor_training.output_folder import lock_folder
from rl_conductor_training.spending import CostEstimate, check_judge_price, check_prices
from rl_conductor_training.tasks import Task

log = logging.getLogger("rl_conductor_training.learn")

Production = Callable[[WorkerPool], Sequence[RatedWorkflow]]


async def learn(
    task: Task | str | Path,
    pool: Pool,
    *,
    out: str | Path,
    heldout: Task | str | Path | None = None,
    budget: Limits | None = None,
    planner: Planner | Model | str | None = None,
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
        planner: the prompted planner, its model, or a `provider:model` name; by default that of the pool file, or the
            model of the first worker that can plan.
        settings: the seed, the concurrency and the learners.
        production: returns rated production runs of the pool on questions of the task; see `learn_from_runs`.
        on_estimate: called with the expected cost, which is within the caps, before anything is spent.
        on_progress: called as stages begin and rows arrive.

    Raises:
        ConfigError: the task is too small or has a held-out question, a cap in dollars can't be enforced, or another
            process uses the folder.
        LimitError: the caps are too low to compare the workers, or for any held-out question.
    """
    folder, limits, settings = Path(out), budget or Limits(), settings or LearnSettings()
    with lock_folder(folder):
        workspace = open_workspace(pool, planner, folder)
        rated = production(workspace.conductor.pool)
        check_prices(workspace.conductor.pool, limits)
        data = split_task(task, seed=settings.seed, opening_file=folder / OPENING_FILE, heldout=heldout)
        check_judge_price(data.task, limits)
        run = LearnRun(data, workspace, limits, settings, on_progress)
        add_production_rows(run.runner, rated)
        for warning in run.describe_warnings():
            log.warning(warning)
        on_estimate(estimate_cost(data, workspace.conductor, settings, run.needs, limits))
        async with run:
            return await _run_stages(run, rated)


async def _run_stages(run: LearnRun, rated: Sequence[RatedWorkflow]) -> LearnRecord:
    """Runs all stages and writes the folder."""
    rows, parallelism = await measure_workers(run)
    for remark in run.runner.describe_contained_answers():
        log.warning(remark)
    search = await prepare_search(run, rows, parallelism, rated)
    exploration, plan = await explore_workflows(run, search)
    lessons, is_complete = await validate_workflows(run, search.sizes.singles, exploration.portfolio, plan)
    is_whole = exploration.is_complete and is_complete and not plan.is_smaller
    groups = [run.data.groups[sample.id] for sample in lessons.table.samples]
    gate = measure_room(lessons.table, lessons.singles, lessons.workflows, groups, is_whole=is_whole)
    if lessons.table.has_partial_scores:
        run.notes.append('there are scores between 0 and 1: "right" is the mean score')
    has_room = gate.is_open or not run.settings.requires_room
    validation, learners = await validate_learners(run, lessons, plan) if has_room else ([], baselines(run))
    if gate.cheapest_single is not None:
        learners.append(CheapestWorker())
    for learner in learners:
        learner.fit(lessons)
    proof = await prove(run, learners, lessons, plan) if has_room or gate.is_promising else None
    workers = summarize_workers(lessons.table, lessons.singles, groups)
    fixed = best_workflow(lessons.table, [*lessons.singles, *lessons.workflows])
    record = _build_record(
        run,
        search,
        plan,
        exploration,
        gate=gate,
        workers=workers,
        wrong_answers=find_wrong_answers(lessons.table, fixed),
        validation=validation,
        proof=proof,
        is_whole=is_whole,
    )
    run.workspace.write(record, learners, run.data)
    return record


def _build_record(
    run: LearnRun,
    search: PlannedSearch,
    plan: SearchPlan,
    exploration: Exploration,
    *,
    gate: Gate,
    workers: Sequence[SystemSummary],
    wrong_answers: tuple[WrongAnswer, ...],
    validation: Sequence[ValidationResult],
    proof: Proof | None,
    is_whole: bool,
) -> LearnRecord:
    if not is_whole:
        run.notes.append(_describe_smaller_search(run, plan))
    run.notes.extend([*run.runner.describe_verdicts(), *run.runner.describe_contained_answers()])
    spending = run.budget.total.spent
    unanswered = spending - run.spending.of_replies
    return LearnRecord(
        task=run.data.task.name,
        seed=run.settings.seed,
        created=datetime.now(UTC),
        package=package_version(),
        limits=run.limits,
        estimate=run.estimate,
        questions=run.data.sizes,
        groups=len(set(run.data.groups.values())),
        candidates=exploration.tried,
        proposals=search.proposals,
        portfolio=tuple(map(describe, exploration.portfolio)),
        gate=gate,
        workers=tuple(workers),
        validation=tuple(validation),
        proof=proof,
        recommended=proof.recommended if proof else BestWorker.name,
        notes=tuple(run.notes),
        wrong_answers=wrong_answers,
        failures=run.runner.find_failures(),
        cut_off=run.runner.find_cut_off(),
        runs=len(run.runner.added | run.runner.reused),
        reused=len(run.runner.reused),
        calls=spending.calls,
        tokens=spending.tokens,
        usd=spending.usd,
        unpriced_calls=run.spending.unpriced_calls,
        unanswered_tokens=max(unanswered.tokens, 0),
        unanswered_usd=max(unanswered.usd, Decimal(0)),
        seconds=run.budget.elapsed,
    )


def _describe_smaller_search(run: LearnRun, plan: SearchPlan) -> str:
    need = describe_need(run.caps_needed(plan.thorough), run.limits)
    size = f" ({plan.summary})" if plan.is_smaller else ""
    return f"the caps left room for a smaller search only{size}; {need}"
