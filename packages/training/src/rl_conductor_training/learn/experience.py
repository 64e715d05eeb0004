"""The table of experience: the score, cost and time of each workflow on each question, as a JSON Lines file.

Other tools can read the file as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from operator import not_
from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from rl_conductor.calls.budget import Amount
from rl_conductor.config.learned_folder import fingerprint_worker
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.prompting.prompt_version import prompt_version
from rl_conductor.scoring import Score
from rl_conductor.trace.feedback import POSITIVE_SCORE
from rl_conductor.types import Dollars, FinishReason, Text, Usage, total
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.row_file import Row, RowFile, fingerprint
from rl_conductor_training.tasks import Sample


class ExperienceRow(Row):
    """One run of a system on a question."""

    key: str
    """Fingerprint of the question, its scoring, the workflow and its workers."""
    sample: str
    """Id of the question when it was asked; ids may be line numbers, which change."""
    question: Text
    system: str
    """`workflow`, or the name of a system with a planner."""
    workflow: Workflow | None
    """The workflow that ran; `None` if there was no plan."""
    score: float
    answer: Text | None = None
    """The answer that the scorer extracted."""
    contained_answer: Text = Field(default="", exclude_if=not_)
    """The line of a wrong reply that contains the right answer, shortened; empty if there is none."""
    replies: tuple[Text, ...] = Field(default=(), exclude_if=not_)
    """The reply of each step, shortened; only of systems with a planner."""
    fallback_reason: Text = Field(default="", exclude_if=not_)
    """Why the fallback plan ran: the error of the planner's last attempt; empty if the planner wrote a valid plan."""
    usd: Dollars = Decimal(0)
    """Cost of the system's own calls, as are `tokens` and `calls`: nobody pays a judge for an answer in use."""
    tokens: int = 0
    calls: int = 0
    unpriced_calls: int = Field(default=0, exclude_if=not_)
    """Calls whose price is unknown: when this is not 0, `usd` is a lower bound."""
    outcomes: dict[str, dict[Text, int]] = Field(default_factory=dict, exclude_if=not_)
    """Attempts by worker or `the planner`, and by `ok` or the error; replies from the cache are not counted."""
    finishes: dict[str, dict[FinishReason, int]] = Field(default_factory=dict, exclude_if=not_)
    """All replies by worker or `the planner`, and by why they ended."""
    seconds: float = 0.0
    """Seconds until the answer; cached calls count with their original time."""
    scoring: Usage = Field(default_factory=Usage, exclude_if=lambda usage: not usage.calls)
    """Usage of a judge, which is part of the spending; none if the same reply had its score before."""
    score_key: str = Field(default="", exclude_if=not_)
    """Fingerprint of the question, its scoring and the reply; empty if there was no reply to score."""
    undecided: bool = Field(default=False, exclude_if=not_)
    """Whether a judge gave no clear verdict on the reply, so that it counts as wrong."""
    source: Literal["learn", "production"] = Field(default="learn", exclude_if=lambda source: source == "learn")
    """`production`: a run of a server, scored by its users' feedback; it cost this learning run nothing."""
    created: datetime = Field(default_factory=lambda: datetime.now(UTC))

    @property
    def is_positive(self) -> bool:
        """Whether the score is above 0, or that of users not negative."""
        return self.score >= POSITIVE_SCORE if self.source == "production" else self.score > 0

    @property
    def spending(self) -> Amount:
        """Cost of the run, with that of the judge."""
        return Amount(self.usd, self.tokens, self.calls) + Amount.of(self.scoring)

    def about(self, sample: Sample) -> Self:
        """Returns the row with the id that its question has now."""
        return self if self.sample == sample.id else self.model_copy(update={"sample": sample.id})


def cost_order(usd: Decimal, tokens: float, unpriced_calls: int) -> tuple[bool, Decimal, float]:
    """Returns the key that sorts by dollars, then tokens; costs with an unknown price come last, by their tokens."""
    is_unpriced = unpriced_calls > 0
    return is_unpriced, Decimal(0) if is_unpriced else usd, tokens


def fingerprint_workers(pool: WorkerPool, versions: Mapping[str, str]) -> dict[str, str]:
    """Hashes each worker and its version, which shows changes that its card and settings don't show."""
    return {name: fingerprint(fingerprint_worker(worker), versions.get(name, "")) for name, worker in pool.items()}


def describe_scoring(sample: Sample) -> str:
    """Serialises a question with all that affects the score of a reply, but without its name and group."""
    return sample.model_dump_json(
        exclude={"id": True, "domain": True, "depth": True, "contrast": True, "details": {"group"}}
    )


def row_key(sample: Sample, system: str, workers: Iterable[str]) -> str:
    """Computes the key of a system on a question, from everything that affects the score.

    Args:
        sample: the question and its scoring.
        system: the workflow, or the planner with its settings, as JSON.
        workers: fingerprints of the workers that the system uses.
    """
    return fingerprint(describe_scoring(sample), system, *workers, prompt_version())


class Experience(RowFile[ExperienceRow]):
    """The rows of one folder."""

    row_type = ExperienceRow
    contents = "experience"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.scores = {
            row.score_key: Score(value=row.score, answer=row.answer, undecided=row.undecided)
            for row in self._rows.values()
            if row.score_key
        }
        """The scores of replies by `score_key`, because the same reply to a question is scored once."""

    def rows(self, samples: Iterable[Sample]) -> list[ExperienceRow]:
        """Returns the rows about these questions, even if their ids have changed, in the order of the file."""
        questions = {sample.question for sample in samples}
        return [row for row in self._rows.values() if row.question in questions]

    def scoring_usage(self) -> Usage:
        """Returns the usage of the judge in all rows."""
        return total(row.scoring for row in self._rows.values())


class ScoreTable:
    """Rows of experience by workflow and question, for the questions of one part of the data."""

    def __init__(self, rows: Sequence[ExperienceRow], samples: Sequence[Sample]) -> None:
        self.samples = tuple(samples)
        self.rows: dict[tuple[Workflow, str], ExperienceRow] = {
            (row.workflow, row.sample): row for row in rows if row.workflow is not None and row.system == "workflow"
        }
        self.by_question: dict[str, list[ExperienceRow]] = defaultdict(list)
        """The same rows by the id of their question."""
        for row in self.rows.values():
            self.by_question[row.sample].append(row)

    def scores(self, workflow: Workflow) -> list[float | None]:
        """Returns the scores of a workflow in the order of the questions; `None` where it did not run."""
        rows = (self.rows.get((workflow, sample.id)) for sample in self.samples)
        return [None if row is None else row.score for row in rows]

    def count(self, workflow: Workflow) -> int:
        """Returns the number of questions on which the workflow ran."""
        return sum(score is not None for score in self.scores(workflow))

    def mean(self, workflow: Workflow) -> float:
        """Returns the mean score over the questions on which the workflow ran; 0 if there are none."""
        scores = [score for score in self.scores(workflow) if score is not None]
        return sum(scores) / len(scores) if scores else 0.0

    def cost_order(self, workflow: Workflow) -> tuple[bool, Decimal, float]:
        """Returns the key that sorts workflows by their mean cost per question."""
        rows = [row for sample in self.samples if (row := self.rows.get((workflow, sample.id))) is not None]
        count = max(len(rows), 1)
        usd = sum((row.usd for row in rows), Decimal(0)) / count
        return cost_order(usd, sum(row.tokens for row in rows) / count, sum(row.unpriced_calls for row in rows))

    def best_rows(self, sample: Sample) -> list[ExperienceRow]:
        """Returns the rows with the highest score on a question, the cheapest first; none if no score is above 0.

        Where replies are right or wrong, these are the rows with a right answer. Production runs that users disliked
        are left out.
        """
        rows = [row for row in self.by_question[sample.id] if row.is_positive]
        highest = max((row.score for row in rows), default=0.0)
        return sorted((row for row in rows if row.score == highest), key=_cost_order)

    @property
    def has_partial_scores(self) -> bool:
        """Whether a score is neither 0 nor 1."""
        return any(0 < row.score < 1 for row in self.rows.values())


def _cost_order(row: ExperienceRow) -> tuple[tuple[bool, Decimal, float], int, str]:
    """Orders rows by cost without their time, which differs between runs."""
    assert row.workflow is not None
    return cost_order(row.usd, row.tokens, row.unpriced_calls), row.calls, row.workflow.model_dump_json()
