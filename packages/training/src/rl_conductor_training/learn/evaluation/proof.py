"""Runs all systems on the held-out questions and assembles the proof."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rl_conductor._internal.formatting import counted
from rl_conductor.conductor import Conductor
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.types import Request
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.data import HeldOutOpening
from rl_conductor_training.learn.evaluation.comparison import (
    BASELINES,
    ORACLE,
    SystemRows,
    common_samples,
    compare,
    recommend,
    summarize_system,
)
from rl_conductor_training.learn.experience import ExperienceRow, ScoreTable
from rl_conductor_training.learn.learn_run import LearnRun
from rl_conductor_training.learn.learners.base import Learner, Lessons
from rl_conductor_training.learn.learners.prompted import PromptedPlanner
from rl_conductor_training.learn.record import Proof
from rl_conductor_training.learn.runner import Runner
from rl_conductor_training.learn.search.candidates import describe
from rl_conductor_training.learn.search.explore import score_table
from rl_conductor_training.learn.search.plan import SearchPlan
from rl_conductor_training.statistics import fewest_groups
from rl_conductor_training.tasks import Sample


async def prove(run: LearnRun, learners: Sequence[Learner], lessons: Lessons, plan: SearchPlan) -> Proof:
    """Compares the systems on the held-out questions: the baselines, the prompted planner, and the other learners.

    Systems that the budget ended early are left out; a note names them, and those without a valid plan.

    Raises:
        LimitError: the caps did not suffice for a single question.
    """
    run.begin("evaluating on held-out questions", 1.0)
    runner, samples = run.runner, run.data.heldout.task.samples
    baselines = [learner for name in BASELINES for learner in learners if learner.name == name]
    others = [learner for learner in learners if learner.name not in BASELINES]
    ordered = [*baselines, PromptedPlanner(runner.conductor), *others]
    systems = [await _run_system(runner, learner, samples) for learner in ordered]
    workflows = list(dict.fromkeys([*lessons.singles, *lessons.workflows]))
    # Question by question, so that a spent budget leaves complete questions.
    await runner.run_workflows((sample, workflow) for sample in samples for workflow in workflows)
    oracle = _oracle(score_table(runner, samples), workflows)
    systems.append(SystemRows(ORACLE, "the cheapest right workflow", oracle, sees_answers=True))
    systems = _drop_incomplete(systems, len(samples), run.notes)
    ids = common_samples(systems, [sample.id for sample in samples])
    if not ids:
        raise run.caps_too_low("to ask every system a single held-out question", plan.thorough)
    if len(ids) < len(samples):
        run.notes.append(f"a cap ended the evaluation early: it covers {len(ids)} of {len(samples)} held-out questions")
    groups = [run.data.groups[name] for name in ids]
    run.notes.extend(_describe_unplanned(systems, ids))
    summaries = tuple(summarize_system(system, ids, groups) for system in systems)
    comparisons = tuple(compare(systems, ids, groups))
    run.notes.extend(_describe_power(len(comparisons), len(set(groups))))
    opening = run.data.heldout.record_opening(run.fingerprint)
    run.notes.extend(_describe_earlier_runs(opening))
    recommended, reason = recommend(summaries, comparisons)
    return Proof(
        opening=opening,
        questions=len(ids),
        systems=summaries,
        comparisons=comparisons,
        recommended=recommended,
        reason=reason,
    )


async def run_learned(
    runner: Runner, name: str, conductor: Conductor, samples: Sequence[Sample]
) -> dict[str, ExperienceRow]:
    """Runs the conductor of a learner called `name` on questions; returns the rows within the budget by sample id."""
    if conductor.config.selector is None:
        return {row.sample: row for row in await runner.run_conductor(samples, name, conductor)}
    pairs = [(sample, _select(conductor.config.selector, sample)) for sample in samples]
    await runner.run_workflows(pairs)
    table = score_table(runner, samples)
    rows = {sample.id: table.rows.get((workflow, sample.id)) for sample, workflow in pairs}
    return {name: row for name, row in rows.items() if row is not None}


async def _run_system(runner: Runner, learner: Learner, samples: Sequence[Sample]) -> SystemRows:
    conductor = learner.apply(runner.conductor)
    rows = await run_learned(runner, learner.name, conductor, samples)
    selector = conductor.config.selector
    if selector is None:
        return SystemRows(learner.name, learner.description, rows, planner_calls=True)
    if len(selector.workflows) == 1:
        return SystemRows(learner.name, describe(selector.workflows[0]), rows)
    names = dict.fromkeys(describe(_select(selector, sample)) for sample in samples)
    return SystemRows(learner.name, f"one of {'; '.join(names)}", rows)


def _drop_incomplete(systems: Sequence[SystemRows], questions: int, notes: list[str]) -> list[SystemRows]:
    """Leaves out the systems that the budget ended early, except for the baselines, and notes which."""
    complete = []
    for system in systems:
        if len(system.rows) == questions or system.name in BASELINES:
            complete.append(system)
        else:
            notes.append(
                f"a cap ended the evaluation of {system.name} after {len(system.rows)} of {questions} questions, so "
                "it is not in the table"
            )
    return complete


def _describe_unplanned(systems: Iterable[SystemRows], samples: Sequence[str]) -> Iterator[str]:
    """Yields a remark for each system whose planner wrote no valid plan, or could not be called."""
    for system in systems:
        if reasons := list(filter(None, (system.rows[sample].fallback_reason for sample in samples))):
            share = f"{len(reasons)} of {len(samples)} held-out questions"
            yield f"{system.name}: there was no valid plan for {share}, so the fallback plan was run: {reasons[0]}"


def _describe_power(comparisons: int, groups: int) -> Iterator[str]:
    """Yields a remark if no difference could be significant, however large it is."""
    if comparisons and groups < (needed := fewest_groups(comparisons)):
        yield (
            f"{counted(groups, 'group')} of held-out questions can't show a gain or a loss, however large it is: "
            f"{counted(comparisons, 'comparison')} need at least {needed} held-out groups"
        )


def _describe_earlier_runs(opening: HeldOutOpening) -> Iterator[str]:
    """Yields a remark if other runs were evaluated on the same held-out questions."""
    if earlier := len(opening.runs) - 1:
        yield (
            f"{counted(earlier, 'other run')} with other workers, planners, learners or answers had these held-out "
            f"questions, the first on {opening.opened:%Y-%m-%d}: the best of several runs looks better than it is, so "
            "confirm it on new questions, with --heldout"
        )


def _select(selector: WorkflowSelector, sample: Sample) -> Workflow:
    return selector.select(Request.user(sample.question))


def _oracle(table: ScoreTable, workflows: Sequence[Workflow]) -> dict[str, ExperienceRow]:
    """Returns the cheapest of the rows with the highest score on each question, else the first one."""
    oracle = {}
    for sample in table.samples:
        rows = [row for workflow in workflows if (row := table.rows.get((workflow, sample.id))) is not None]
        if len(rows) == len(workflows):
            best = [row for row in table.best_rows(sample) if row.workflow in workflows]
            oracle[sample.id] = best[0] if best else rows[0]
    return oracle
