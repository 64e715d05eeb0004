"""The stages of the search: measures the workers, plans a search by their costs, and explores workflows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.experience import ExperienceRow
from rl_conductor_training.learn.learn_run import LearnRun
from rl_conductor_training.learn.production.rows import liked_workflows
from rl_conductor_training.learn.production.stored_runs import RatedWorkflow
from rl_conductor_training.learn.search.candidates import build_candidates, descriptions, single_workers
from rl_conductor_training.learn.search.costs import CallCosts, Cost, describe_failures, find_working, measure_costs
from rl_conductor_training.learn.search.explore import (
    PROPOSALS,
    Exploration,
    explore,
    explore_further,
    propose,
    score_table,
)
from rl_conductor_training.learn.search.plan import (
    CAP_NAMES,
    MEASURING,
    PROPOSING,
    SearchPlan,
    SearchSizes,
    load_plan,
    plan_search,
    store_plan,
)
from rl_conductor_training.row_file import fingerprint
from rl_conductor_training.tasks import Sample

PILOT = 4
"""Number of training questions on which the cost of each worker is measured."""
PILOT_PROPOSALS = 2
"""Number of plans from which the cost of a plan is measured."""
PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class PlannedSearch:
    """A search that is about to begin."""

    plan: SearchPlan
    sizes: SearchSizes
    costs: CallCosts
    examples: Sequence[tuple[Sample, Workflow]]
    """Workflows for single questions: those that users liked, and the planner's proposals."""
    proposals: int
    """Number of plans that the planner proposed."""


async def measure_workers(run: LearnRun) -> tuple[dict[str, list[ExperienceRow]], float]:
    """Runs each worker alone on a few questions; returns its rows, and how many calls ran at the same time.

    Raises:
        ConfigError: all workers failed, or a judge gave no clear verdict.
        LimitError: the caps did not suffice for a single run.
    """
    pilot, names = run.questions[:PILOT], [*run.workspace.conductor.pool]
    singles = single_workers(names)
    run.begin("measuring the workers", MEASURING)
    created, started = datetime.now(UTC), time.monotonic()
    await run.runner.run_workflows((sample, workflow) for sample in pilot for workflow in singles)
    elapsed = time.monotonic() - started
    table = score_table(run.runner, pilot)
    rows = {
        name: [row for sample in pilot if (row := table.rows.get((workflow, sample.id))) is not None]
        for name, workflow in zip(names, singles, strict=True)
    }
    if not any(rows.values()):
        raise run.caps_too_low("to ask the workers a single question", Cost())
    run.runner.require_verdicts()
    run.is_measured = all(rows.values())
    run.notes += describe_failures(rows)
    # Rows of an earlier process took none of this time.
    seconds = sum(row.seconds for name in names for row in rows[name] if row.created >= created)
    return rows, seconds / elapsed if elapsed > 1 else 1.0


async def prepare_search(
    run: LearnRun, rows: Mapping[str, Sequence[ExperienceRow]], parallelism: float, rated: Sequence[RatedWorkflow]
) -> PlannedSearch:
    """Asks the planner for proposals, and plans a search over the workers that work, which leaves enough for the proof.

    The costs are those of `rows` by worker, of which `parallelism` ran at the same time.
    """
    run.begin("asking the planner for proposals", PROPOSING)
    is_capped = any(getattr(run.limits, name) for name in CAP_NAMES)
    proposals = await propose(run.runner, run.questions, PILOT_PROPOSALS if is_capped else PROPOSALS)
    costs = measure_costs(rows, proposals.calls, parallelism=parallelism)
    workers = find_working(descriptions(run.workspace.conductor.pool), rows)
    proposed = [*liked_workflows(rated, run.questions), *proposals.plans]
    examples = [pair for pair in proposed if all(step.worker in workers for step in pair[1].steps)]
    workflows = [workflow for _, workflow in examples]
    candidates = build_candidates(workers, workflows, max_steps=run.settings.max_steps, seed=run.settings.seed)
    sizes = SearchSizes(
        candidates,
        single_workers([*workers]),
        train=len(run.questions),
        validation=len(run.data.validation.samples),
        heldout=run.data.heldout.size,
        learner_runs=run.needs.runs,
        training_seconds=run.needs.seconds,
    )
    plan = plan_search(sizes, costs, run.limits, run.budget.spending)
    plan = load_plan(run.workspace.folder / PLAN_FILE, plan, _plan_key(run))
    return PlannedSearch(plan, sizes, costs, examples, len(proposals.plans))


def _plan_key(run: LearnRun) -> str:
    """Identifies the purpose of a stored plan, so that another one is made for other caps, workers or questions."""
    settings = f"{run.settings.seed} {run.settings.max_steps} {run.needs.key}"
    tasks = (run.data.train, run.data.validation, run.data.heldout.task)
    questions = [sample.id for task in tasks for sample in task.samples]
    return fingerprint(run.limits.model_dump_json(), settings, *run.workspace.workers.values(), *questions)


async def explore_workflows(run: LearnRun, search: PlannedSearch) -> tuple[Exploration, SearchPlan]:
    """Explores as planned, then as planned anew by the actual costs, then with the rest of the stage's budget.

    Returns the last plan as well.
    """
    plan, rows, started = search.plan, len(run.experience), run.budget.elapsed
    exploration = await _explore(run, search, plan)
    is_measured = len(run.experience) - rows > plan.runs / 2  # otherwise an earlier process took the time for it
    if exploration.is_complete and is_measured and plan.exploration.seconds:
        costs = search.costs.faster((run.budget.elapsed - started) / plan.exploration.seconds)
        anew = plan_search(search.sizes, costs, run.limits, plan.began)
        plan = store_plan(run.workspace.folder / PLAN_FILE, anew, plan.key)
        exploration = await _explore(run, search, plan)
    if not exploration.is_complete:
        run.note_cap("exploration", f"{len(run.experience)} runs were made")
    elif others := exploration.select_others(search.sizes.candidates):
        run.begin("exploring further workflows", plan.exploring)
        exploration = await explore_further(run.runner, run.questions, exploration, others, plan)
    return exploration, plan


async def _explore(run: LearnRun, search: PlannedSearch, plan: SearchPlan) -> Exploration:
    """Explores as planned; runs that were made before are not repeated."""
    run.begin(f"exploring: {plan.summary}", plan.exploring)
    return await explore(run.runner, run.questions, search.sizes.candidates, search.examples, plan)
