"""`LearnRun`: the state that all stages of a learning run share, such as its caps, its runner and its notes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

from rl_conductor.calls.budget import Amount
from rl_conductor.config.learned_folder import EXPERIENCE_FILE
from rl_conductor.errors import LimitError
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Request
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.request_tokens import upper_bound
from rl_conductor_training.learn.budget import LearningBudget, RunSpending
from rl_conductor_training.learn.data import LearnData
from rl_conductor_training.learn.estimate import estimate_cost
from rl_conductor_training.learn.experience import Experience, ExperienceRow
from rl_conductor_training.learn.learners.base import SearchNeeds
from rl_conductor_training.learn.runner import Runner
from rl_conductor_training.learn.search.costs import Cost
from rl_conductor_training.learn.search.explore import exploration_order
from rl_conductor_training.learn.search.plan import CAP_NAMES, MEASURING, describe_cost, describe_need
from rl_conductor_training.learn.settings import LearnSettings
from rl_conductor_training.learn.workspace import Workspace
from rl_conductor_training.row_file import fingerprint
from rl_conductor_training.tasks import Sample


class LearnProgress(NamedTuple):
    """The state of a learning run when a stage begins or a row arrives."""

    stage: str
    """The stage in progress, such as `validating`."""
    spending: Amount
    """Spending of all processes of this run; replies from the cache cost nothing."""
    row: ExperienceRow | None
    """The new row of experience, if there is one."""


OnProgress = Callable[[LearnProgress], None]


class LearnRun:
    """One process of a learning run; its stages share it, and pass their results to each other."""

    def __init__(
        self, data: LearnData, workspace: Workspace, limits: Limits, settings: LearnSettings, on_progress: OnProgress
    ) -> None:
        """Goes on from the rows and the spending in the folder."""
        self.data, self.workspace, self.limits, self.settings = data, workspace, limits, settings
        self.questions = exploration_order(data.train.samples, settings.seed)
        """The training questions, in the order in which they are explored."""
        self.learners = [create() for create in settings.learners]
        self.needs = SearchNeeds.of(self.learners)
        self.estimate = estimate_cost(data, workspace.conductor, settings, self.needs, Limits())
        self.notes = [*workspace.notes, *data.notes]
        """Caps that were reached, and other remarks for the record."""
        self.experience = Experience(workspace.folder / EXPERIENCE_FILE)
        key = fingerprint(*workspace.workers.values(), *map(Sample.model_dump_json, data.task.samples))
        self.spending = RunSpending(workspace.folder, self.experience, key)
        self.budget = LearningBudget(limits, self.spending.amount)
        self.is_measured = False
        """Whether each worker answered a question, so that the cost of a search is known."""
        self.runner = Runner(
            task=data.task,
            conductor=workspace.conductor,
            experience=self.experience,
            workers=workspace.workers,
            planner_version=workspace.planner_version,
            concurrency=settings.concurrency,
            on_row=self._add_row,
            on_status=lambda status: self._report(f"{self._stage}: {status}"),
        )
        learners = (learner.name for learner in self.learners)
        self.fingerprint = fingerprint(key, self.runner.describe_planner(workspace.conductor), *learners)
        """Identifies the run among those that were evaluated on the same held-out questions."""
        self._on_progress, self._stage = on_progress, ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stores the spending and closes the models."""
        self.save_spending()
        await self.runner.aclose()

    def begin(self, stage: str, share: float) -> None:
        """Begins a stage, which ends when this share of the caps is spent."""
        self._stage = stage
        self.runner.begin_stage(self.budget.stage(share))
        self._report(stage)

    def note_cap(self, stage: str, consequence: str) -> None:
        """Notes that a cap ended a stage early."""
        self.notes.append(f"a cap ended {stage} early: {consequence}")

    def caps_needed(self, thorough: Cost) -> Cost:
        """Returns the caps for a run that costs `thorough`, as far as it is known by now, and has room for a call.

        A call is made only if all that it reserves fits the caps of its stage, of which the first stage has the
        smallest. Calls at the same time need no more room: one that does not fit beside the others waits for them.
        """
        spending, estimate = self.budget.spending, self.estimate
        if spending.calls:  # steps of chains have longer prompts than what was measured
            thorough = thorough.at_least(spending * (thorough.calls / spending.calls))
        if not self.is_measured:  # a worker that could not be called may be the dearest
            usd, seconds = float(estimate.usd or 0), estimate.minutes * 60
            thorough = thorough.at_least(Cost(usd=usd, tokens=estimate.tokens, calls=estimate.calls, seconds=seconds))
        return thorough + self.budget.largest_call * (1 / MEASURING)

    def caps_too_low(self, purpose: str, thorough: Cost) -> LimitError:
        """Builds the error of caps that did not suffice for `purpose`; it names the one that ran out."""
        limits, needed, spending = self.limits, self.caps_needed(thorough), self.budget.spending
        limit = self.budget.tightest_cap
        return LimitError(
            f"the caps are too low {purpose}: {CAP_NAMES[limit]} ran out; {describe_need(needed, limits)}: raise the "
            "caps and run the same command again",
            limit=limit,
            needed=getattr(needed, limit),
            remaining=max(float(getattr(limits, limit)) - getattr(spending, limit), 0.0),
        )

    def describe_warnings(self) -> list[str]:
        """Describes the problems that the user should know before anything is spent."""
        return [*self.data.describe_copies(), *self._describe_refused_workers()]

    def _describe_refused_workers(self) -> list[str]:
        """Describes the workers of which a single call reserves more than the first stage may spend."""
        question = min((sample.question for sample in self.questions), key=len)
        pool = self.workspace.conductor.pool
        return [text for worker in pool.values() if (text := _describe_refusal(worker, question, self.limits))]

    def _report(self, stage: str, row: ExperienceRow | None = None) -> None:
        self._on_progress(LearnProgress(stage, self.budget.total.spent, row))

    def save_spending(self) -> None:
        """Stores the spending, so that a process that goes on counts it."""
        self.spending.save(self.budget.total.spent)

    def _add_row(self, row: ExperienceRow) -> None:
        self.save_spending()
        if row.sample in self.data.heldout.ids:
            self.data.heldout.record_opening(self.fingerprint)
        self._report(self._stage, row)


def _describe_refusal(worker: Worker, question: str, limits: Limits) -> str:
    """Says why a worker can't be measured under these caps; empty if it can."""
    bound = upper_bound(Request.user(question, sampling=worker.sampling), worker.model.price)
    reserved = Cost(usd=float(bound.cost or 0), tokens=bound.tokens, calls=1)
    if worker.model.capabilities.delegates or reserved.share(limits) <= MEASURING:
        return ""
    return (
        f"{worker.name} can't be measured: each call reserves {describe_cost(reserved, limits)} for its longest reply, "
        f"and measuring the workers may take {MEASURING:.0%} of the caps; lower its max_tokens (now "
        f"{bound.output_tokens:,}), or raise the caps to {describe_cost(reserved * (1 / MEASURING), limits)} or more"
    )
