"""`LearnRecord`: all numbers of a learning run, as stored in `record.json`."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from rl_conductor._internal.formatting import cost
from rl_conductor.types import Dollars, Text, Usage, Value
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.cut_off_replies import CutOffReplies
from rl_conductor_training.learn.data import HeldOutOpening
from rl_conductor_training.learn.evaluation.gate import Gate
from rl_conductor_training.spending import CostEstimate
from rl_conductor_training.statistics import Difference, Estimate


class SystemSummary(Value):
    """The results of one system on the held-out questions, or of a worker on those of training and validation."""

    name: str
    description: str
    right: Estimate
    usd: Dollars
    """Mean US dollars per question."""
    unpriced_calls: int = 0
    """Calls whose price is unknown: when this is not 0, `usd` is a lower bound."""
    tokens: float
    """Mean tokens per question."""
    seconds: float
    """Mean seconds until the answer."""
    planner_calls: bool
    """Whether a planner is called for each question."""
    sees_answers: bool = False
    """Whether the system knows which answers are right, so that nobody can use it."""

    @property
    def cost(self) -> str:
        """The dollars per question; `≥` when some calls have no known price, `?` when none has."""
        return cost(Usage(cost=self.usd, unpriced_calls=self.unpriced_calls))


class SystemComparison(Value):
    """Two systems on the same held-out questions."""

    system: str
    baseline: str
    difference: Difference
    """Its p-value is corrected for the number of comparisons (Holm), its interval is not."""

    @property
    def verdict(self) -> str:
        """`gain` or `loss` only where both the test and the interval exclude zero."""
        if not self.difference.significant:
            return "not shown"
        return "gain" if self.difference.value > 0 else "loss"


class ValidationResult(Value):
    """The result of a learner on the validation questions, from which the learners to prove are chosen."""

    name: str
    right: float
    """Share of right answers."""
    usd: Dollars
    """Mean US dollars per question."""
    unpriced_calls: int = 0
    """Calls whose price is unknown: when this is not 0, `usd` is a lower bound."""
    tokens: float
    seconds: float
    n: int
    """Number of questions."""
    is_chosen: bool
    """Whether the learner was run on the held-out questions."""


class WorkerFailures(Value):
    """The calls of a worker, or of the planner, that failed."""

    worker: str
    """Its name, or `the planner`."""
    failed: int
    """Number of failed calls; one that is tried again counts again."""
    calls: int
    """Number of calls, without replies from the cache."""
    reason: str
    """The most frequent error."""


class WrongAnswer(Value):
    """A question that a workflow answered wrongly, or only partly right."""

    question: Text
    expected: Text
    """The accepted answers, or the rubric of a judge."""
    answer: Text | None
    """The answer that the scorer extracted; `None` if there was no reply."""
    score: float


class Proof(Value):
    """The comparison on the held-out questions."""

    opening: HeldOutOpening
    questions: int
    """Number of held-out questions on which every system ran; fewer than all if a cap was reached."""
    systems: tuple[SystemSummary, ...]
    comparisons: tuple[SystemComparison, ...]
    recommended: str
    reason: str

    @property
    def size(self) -> str:
        """The number of questions, and of their groups where it is another one."""
        return self.systems[0].right.size


class LearnRecord(Value):
    """The record of a learning run."""

    task: str
    """Name of the task."""
    seed: int
    """Seed of the split and the search."""
    created: datetime
    """Time at which the run was finished."""
    package: str
    """Version of the package."""
    limits: Limits
    """The caps."""
    estimate: CostEstimate
    """Expected cost of a thorough search, without caps."""
    questions: dict[str, int]
    """Number of questions in each part of the data."""
    groups: int
    """Number of groups of similar questions."""
    candidates: int
    """Number of workflows that were tried."""
    proposals: int
    """Number of plans that the planner proposed."""
    portfolio: tuple[str, ...]
    """The workflows that the learners chose from."""
    gate: Gate
    """The room for learning, and the reason for the recommendation."""
    workers: tuple[SystemSummary, ...] = ()
    """The single workers on the training and validation questions."""
    validation: tuple[ValidationResult, ...] = ()
    """The learners on the validation questions."""
    proof: Proof | None
    """`None` if nothing seemed to answer more, so that the held-out questions stay unopened."""
    recommended: str
    """The system in the folder."""
    notes: tuple[str, ...] = ()
    """Caps that were reached, and other remarks on the numbers."""
    wrong_answers: tuple[WrongAnswer, ...] = ()
    """The first wrong answers of the best fixed workflow on the training and validation questions."""
    failures: tuple[WorkerFailures, ...] = ()
    """The workers with failed calls, and the planner if it has some, those with the largest share of them first."""
    cut_off: tuple[CutOffReplies, ...] = ()
    """The workers, and the planner, with replies that were cut off, those with the largest share of them first."""
    runs: int = 0
    """Number of runs that the process needed which finished the run."""
    reused: int = 0
    """Number of them that were in the folder already."""
    calls: int
    """Number of calls to models, by all processes of the run."""
    tokens: int
    """Tokens of these calls."""
    usd: Dollars
    """US dollars of these calls."""
    unpriced_calls: int = 0
    """Calls whose price is unknown: when this is not 0, `usd` is a lower bound."""
    unanswered_tokens: int = 0
    """The part of `tokens` for calls that failed or were interrupted: the most that they can have used."""
    unanswered_usd: Dollars = Decimal(0)
    """The part of `usd` for these calls."""
    seconds: float
    """Wall time of the process that finished the run."""


class ShapeSummary(Value):
    """The feedback on workflows with the same workers in the same order."""

    workflow: str
    score: Estimate
    """Mean feedback. Production did not assign workflows to questions at random, so shapes can't be compared."""
    usd: Dollars
    """Mean US dollars per run, without planning."""
    unpriced_calls: int = 0
    """Calls whose price is unknown: when this is not 0, `usd` is a lower bound."""
    seconds: float
    """Mean seconds per run, without planning."""


class FeedbackLearnRecord(Value):
    """The record of learning from feedback alone, without a judge."""

    created: datetime
    """Time at which the run was finished."""
    package: str
    """Version of the package."""
    counts: dict[str, int]
    """Number of runs in the file by their use."""
    questions: int
    """Number of questions with feedback."""
    shapes: tuple[ShapeSummary, ...]
    """The most frequent first."""
    examples: int
    """Number of liked plans that the planner is shown examples from."""
    recommended: str = "examples"
    """The learned system."""
