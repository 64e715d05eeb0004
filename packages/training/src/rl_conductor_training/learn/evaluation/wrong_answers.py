"""Finds the questions that a workflow answered wrongly, for the report."""

from __future__ import annotations

from rl_conductor.scoring import Sample
from rl_conductor.text.truncation import truncate_middle
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.experience import ScoreTable
from rl_conductor_training.learn.record import WrongAnswer
from rl_conductor_training.tasks.scorers.accepted import accepted_answers

MAX_WRONG_ANSWERS = 50
MAX_CHARS = 400
"""Maximum characters of each text."""


def find_wrong_answers(table: ScoreTable, workflow: Workflow) -> tuple[WrongAnswer, ...]:
    """Returns the first `MAX_WRONG_ANSWERS` questions that the workflow did not answer rightly; texts are shortened."""
    rows = [(sample, table.rows[workflow, sample.id]) for sample in table.samples]
    return tuple(
        WrongAnswer(
            question=truncate_middle(sample.question, MAX_CHARS),
            expected=truncate_middle(_expected(sample), MAX_CHARS),
            answer=None if row.answer is None else truncate_middle(row.answer, MAX_CHARS),
            score=row.score,
        )
        for sample, row in rows
        if row.score < 1
    )[:MAX_WRONG_ANSWERS]


def _expected(sample: Sample) -> str:
    """Returns all accepted answers, or the rubric of a judge."""
    return str(sample.details.get("rubric") or " or ".join(accepted_answers(sample)))
