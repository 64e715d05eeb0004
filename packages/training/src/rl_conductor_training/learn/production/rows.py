"""Adds rated production runs to the table of experience, and proposes the workflows that users liked."""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor.scoring import Sample
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.experience import ExperienceRow
from rl_conductor_training.learn.production.stored_runs import RatedWorkflow
from rl_conductor_training.learn.runner import Runner
from rl_conductor_training.learn.search.candidates import generalize

MAX_PROPOSALS = 8
"""Maximum number of liked shapes of workflows that become candidates."""


def add_production_rows(runner: Runner, rated: Sequence[RatedWorkflow]) -> None:
    """Appends a row for each rated workflow, unless the table has it already; changed feedback replaces the row."""
    samples = {sample.id: sample for sample in runner.task.samples}
    for run in rated:
        sample = samples[run.sample]
        key = runner.workflow_key(sample, run.workflow)
        row = runner.experience.find(key)
        if row is None or (row.source == "production" and row.score != run.score):
            runner.experience.append(
                ExperienceRow(
                    key=key,
                    sample=sample.id,
                    question=sample.question,
                    system="workflow",
                    workflow=run.workflow,
                    score=run.score,
                    answer=run.answer,
                    usd=run.usd,
                    unpriced_calls=run.unpriced_calls,
                    tokens=run.tokens,
                    calls=run.calls,
                    seconds=run.seconds,
                    source="production",
                )
            )


def liked_workflows(rated: Sequence[RatedWorkflow], order: Sequence[Sample]) -> list[tuple[Sample, Workflow]]:
    """Returns one liked workflow of each of the most frequent shapes, on training questions."""
    samples = {sample.id: sample for sample in order}
    shapes: dict[Workflow, list[RatedWorkflow]] = {}
    for run in rated:
        if run.sample in samples and run.score == 1:
            shapes.setdefault(generalize(run.workflow), []).append(run)
    frequent = sorted(shapes.values(), key=len, reverse=True)[:MAX_PROPOSALS]
    return [(samples[runs[0].sample], runs[0].workflow) for runs in frequent]
