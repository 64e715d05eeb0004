"""Runs all systems on the held-out questions and assembles the proof."""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor.errors import LimitError
from rl_conductor.planning.selector import WorkflowSelector
from rl_conductor.types import Message, Request
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.candidates import describe
from rl_conductor_training.learn.data import LearnData
from rl_conductor_training.learn.experience import ExperienceRow, ScoreTable
from rl_conductor_training.learn.explore import score_table
from rl_conductor_training.learn.learners.base import Learner, Lessons
from rl_conductor_training.learn.prove import (
    ORACLE,
    PROMPTED,
    SystemRows,
    common_samples,
    compare,
    recommend,
    summarize_system,
)
from rl_conductor_training.learn.record import Proof
from rl_conductor_training.learn.runner import Runner
from rl_conductor_training.tasks import Sample


async def prove(runner: Runner, data: LearnData, learners: Sequence[Learner], lessons: Lessons) -> Proof:
    """Opens the held-out questions and compares all systems on those that fit into the budget.

    Raises:
        LimitError: the budget did not suffice for a single held-out question.
    """
    samples = data.heldout.open().samples
    assert data.heldout.opening is not None
    workflows = list(dict.fromkeys([*lessons.singles, *lessons.workflows]))
    planned: dict[str, list[ExperienceRow]] = {}
    # Question by question, so that a spent budget leaves complete questions.
    for sample in samples:
        await runner.run_workflows((sample, workflow) for workflow in workflows)
        planned.setdefault(PROMPTED, []).extend(await runner.run_conductor([sample], PROMPTED, runner.conductor))
        for learner in learners:
            conductor = learner.apply(runner.conductor)
            if conductor.selector is None:
                planned.setdefault(learner.name, []).extend(
                    await runner.run_conductor([sample], learner.name, conductor)
                )
    table = score_table(runner, samples)
    systems = [_collect(learner, runner, table, planned) for learner in learners]
    prompted = {row.sample: row for row in planned[PROMPTED]}
    systems.append(
        SystemRows(PROMPTED, f"plans of {runner.conductor.planner.model.name}", prompted, planner_calls=True)
    )
    systems.append(SystemRows(ORACLE, "the cheapest right workflow", _oracle(table, workflows), sees_answers=True))
    ids = common_samples(systems, [sample.id for sample in samples])
    if not ids:
        raise LimitError(
            "the caps left nothing for the held-out questions; raise them and run the same command again",
            limit="usd",
            needed=0,
            remaining=0,
        )
    groups = [data.groups[name] for name in ids]
    summaries = tuple(summarize_system(system, ids, groups) for system in systems)
    comparisons = tuple(compare(systems, ids, groups))
    recommended, reason = recommend(summaries, comparisons)
    return Proof(
        opening=data.heldout.opening,
        questions=len(ids),
        systems=summaries,
        comparisons=comparisons,
        recommended=recommended,
        reason=reason,
    )


def _collect(
    learner: Learner, runner: Runner, table: ScoreTable, planned: dict[str, list[ExperienceRow]]
) -> SystemRows:
    """Returns the rows of a learned system; those of a selector are in the table already."""
    selector = learner.apply(runner.conductor).selector
    if selector is None:
        rows = {row.sample: row for row in planned[learner.name]}
        description = getattr(learner, "description", "planner")
        return SystemRows(learner.name, description, rows, planner_calls=True)
    rows = {}
    for sample in table.samples:
        workflow = _select(selector, sample)
        if (row := table.rows.get((workflow, sample.id))) is not None:
            rows[sample.id] = row
    workflows = selector.workflows
    descriptions = dict.fromkeys(describe(_select(selector, sample)) for sample in table.samples)
    description = describe(workflows[0]) if len(workflows) == 1 else f"one of {'; '.join(descriptions)}"
    return SystemRows(learner.name, description, rows)


def _select(selector: WorkflowSelector, sample: Sample) -> Workflow:
    return selector.select(Request(messages=(Message.user(sample.question),)))


def _oracle(table: ScoreTable, workflows: Sequence[Workflow]) -> dict[str, ExperienceRow]:
    """Returns the cheapest right row of each question, else the first one."""
    oracle = {}
    for sample in table.samples:
        rows = [row for workflow in workflows if (row := table.rows.get((workflow, sample.id))) is not None]
        if len(rows) == len(workflows):
            right = [row for row in table.right_rows(sample) if row.workflow in workflows]
            oracle[sample.id] = right[0] if right else rows[0]
    return oracle
