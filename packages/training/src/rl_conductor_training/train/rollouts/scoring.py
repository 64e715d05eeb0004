"""Scores plans: parses them strictly, executes them with the real executor and scores the answers.

Needs no torch and computes no rewards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from pydantic import Field

from rl_conductor._internal.per_loop import PerLoop
from rl_conductor.calls.scope import call_scope
from rl_conductor.conductor import Conductor
from rl_conductor.errors import LimitError, ModelError, RunError, WorkflowError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.plan_text.parser import parse
from rl_conductor.scoring import Scorer
from rl_conductor.trace.trace import PlanRecord, Round, StepResult, Trace
from rl_conductor.types import FinishReason, Text, Usage, Value
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.concurrency import run_together
from rl_conductor_training.cut_off_replies import count_finishes
from rl_conductor_training.train.budget import TrainingBudget
from rl_conductor_training.train.prompt_instances import PromptInstance


class ScoredPlan(Value):
    """A plan with the score of its answer."""

    text: Text
    """The plan as sampled."""
    workflow: Workflow | None = None
    """The parsed plan; `None` when it can't be parsed, may not run, or accepts the previous answer."""
    accepts: bool = False
    """Whether the plan is empty, which accepts the answer of the previous round."""
    round: Round | None = None
    """The finished round, for a next one to revise; `None` without an answer that depends on this plan alone."""
    score: float | None = None
    """Score of the answer, 0 to 1; `None` without a valid plan, or when a call to a worker or a judge failed. A
    worker that used up `max_tokens` without an answer counts as wrong, 0."""
    explanation: Text = ""
    """Why the plan could not be parsed or run, or why the answer has this score."""
    finishes: dict[str, dict[FinishReason, int]] = Field(default_factory=dict)
    """The replies by worker, and by why they ended."""
    usage: Usage = Usage()
    """Usage of the workers."""
    seconds: float = 0.0
    """Latency of the critical path; a cached call counts with its original latency."""

    @property
    def valid(self) -> bool:
        """Whether the plan could be parsed and may run."""
        return self.workflow is not None or self.accepts

    @property
    def masked(self) -> bool:
        """Whether the plan is left out of its group, because a call to a worker or a judge failed."""
        return self.valid and self.score is None

    @property
    def right(self) -> bool:
        """Whether the answer has the full score."""
        return self.score == 1


class LoggedPlan(Value):
    """A line of a run's `plans/*.jsonl`."""

    step: int
    question: str
    text: Text
    workflow: Workflow | None
    score: float | None
    reward: float | None
    explanation: Text
    round: int = 1
    before: float | None = None
    """The score of the first answer, in a second round."""

    @classmethod
    def from_scored(
        cls,
        step: int,
        instance: PromptInstance,
        scored: ScoredPlan,
        reward: float | None,
        *,
        previous: ScoredPlan | None = None,
    ) -> Self:
        """Builds the log line of a scored plan; `previous` is the plan of the round before."""
        return cls(
            step=step,
            round=1 if previous is None else 2,
            before=previous and previous.score,
            question=instance.sample.question,
            text=scored.text,
            workflow=scored.workflow,
            score=scored.score,
            reward=reward,
            explanation=scored.explanation,
        )


@dataclass(frozen=True)
class RolloutScorer:
    """Parses and executes plans, and scores their answers."""

    scorer: Scorer
    retries: int = 5
    """Maximum retries of a call after a transient error (supplement: 5)."""
    concurrency: int = 64
    """Maximum number of plans that are executed at the same time."""
    budget: TrainingBudget = field(default_factory=lambda: TrainingBudget(Limits()))
    """The caps that all runs share; a plan that a cap ended is masked."""
    on_plan: Callable[[ScoredPlan], None] = lambda _scored: None
    """Called with each plan once it is scored."""
    _semaphores: PerLoop[asyncio.Semaphore] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_semaphores", PerLoop(lambda: asyncio.Semaphore(self.concurrency)))

    async def score_plans(
        self, instances: Sequence[PromptInstance], texts: Sequence[str], previous: Sequence[ScoredPlan | None] = ()
    ) -> list[ScoredPlan]:
        """Scores each text as a plan for the instance at its position; see `score_plan`.

        Raises:
            ConfigError: the task's scorer failed; plans that still run are cancelled.
        """

        async def score(instance: PromptInstance, text: str, before: ScoredPlan | None) -> ScoredPlan:
            scored = await self.score_plan(instance, text, before)
            self.on_plan(scored)
            return scored

        return await run_together(map(score, instances, texts, previous or (None,) * len(texts)))

    async def score_plan(self, instance: PromptInstance, text: str, previous: ScoredPlan | None = None) -> ScoredPlan:
        """Scores `text` as a plan for `instance`.

        Args:
            instance: the question, its pool, and the rounds before this one.
            text: the plan.
            previous: the scored plan of the previous round. `text` inherits its score if it accepts its answer.
        """
        try:
            workflow = parse(text, instance.space, form=instance.plan.form, repair=False).workflow
        except WorkflowError as error:
            return ScoredPlan(text=text, explanation=str(error))
        if workflow is None:
            assert previous is not None  # the first round's space has no empty plan
            return ScoredPlan(text=text, accepts=True, score=previous.score, explanation=previous.explanation)
        record = PlanRecord(source="planner", text=text, workflow=workflow)
        async with self._semaphores.get():
            if not self.budget.is_over:
                with call_scope(self.budget.calls):
                    return await self._run(instance, record)
        return ScoredPlan(text=text, workflow=workflow, explanation="a cap of the training run is used up")

    async def _run(self, instance: PromptInstance, plan: PlanRecord) -> ScoredPlan:
        planner = ScriptedModel("unused: the run resumes with a plan")
        conductor = Conductor(planner, instance.pool, access=instance.plan.access, retries=self.retries)
        limits = Limits(rounds=len(instance.previous_rounds) + 1, steps=instance.plan.max_steps)
        # Resumed as the planner's own plan, so that a later round is prompted and may recall steps as in serving.
        rounds = [*instance.previous_rounds, Round(plan=plan)]
        try:
            trace = await conductor.run(instance.sample.question, resume=rounds, limits=limits)
        except RunError as error:
            trace = error.trace
        except LimitError as error:
            self.budget.is_exhausted = True
            return ScoredPlan(text=plan.text, workflow=plan.workflow, explanation=str(error))
        last_round = trace.model_copy(update={"rounds": trace.rounds[-1:]})
        self.budget.settle(last_round)
        fields = {
            "text": plan.text,
            "workflow": plan.workflow,
            "finishes": count_finishes(last_round.calls),
            "usage": last_round.usage,
            "seconds": last_round.latency,
        }
        failure = find_failure(last_round)
        if failure is not None:
            # A cap used up on reasoning is the worker's fault and the plan's, unlike a vendor's failure.
            return ScoredPlan(**fields, score=0.0 if only_out_of_tokens(last_round) else None, explanation=failure)
        try:
            score = await self.scorer(instance.sample, trace.text)
        except LimitError as error:  # of a judge
            self.budget.is_exhausted = True
            return ScoredPlan(**fields, explanation=str(error))
        except ModelError as error:
            return ScoredPlan(**fields, explanation=f"the answer could not be scored: {error}")
        return ScoredPlan(**fields, round=trace.rounds[-1], score=score.value, explanation=score.explanation)


def find_failure(trace: Trace) -> str | None:
    """Explains why the answer can't be attributed to the plan: a worker failed or was replaced. `None` if it can."""
    for result in _failed_steps(trace):
        return f"step {result.index + 1}, {result.planned_worker}: {result.error}"
    return None if trace.completion else trace.error


def only_out_of_tokens(trace: Trace) -> bool:
    """Returns whether all failures of planned workers are that they used up `max_tokens` without an answer."""
    failed = list(_failed_steps(trace))
    return bool(failed) and all(_ran_out_of_tokens(result) for result in failed)


def _failed_steps(trace: Trace) -> Iterator[StepResult]:
    for result in trace.results:
        if result.status == "failed" or result.step.worker != result.planned_worker:
            yield result


def _ran_out_of_tokens(result: StepResult) -> bool:
    """Whether the planned worker's last call used up `max_tokens`."""
    calls = [call for call in result.calls if call.worker == result.planned_worker]
    return bool(calls) and calls[-1].out_of_tokens
