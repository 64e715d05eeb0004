"""What came of a plan: read strictly, run by the real executor, its answer scored. Knows neither torch nor rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from rl_conductor.conductor import Conductor
from rl_conductor.errors import ModelError, RunError, WorkflowError
from rl_conductor.limits import Limits
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.parser import parse
from rl_conductor.sync import PerLoop
from rl_conductor.tasks.base import Scorer
from rl_conductor.trace import PlanRecord, Round, Trace
from rl_conductor.train.exercises import Exercise
from rl_conductor.types import Text, Usage, Value
from rl_conductor.workflow import Workflow


class Outcome(Value):
    """One plan, and what came of it."""

    text: Text
    """The plan as written."""
    workflow: Workflow | None = None
    """The plan as read; `None` when it is no plan, one that may not run, or one that accepts."""
    accepts: bool = False
    """Whether the plan is empty, so that the answer of the round before stands."""
    round: Round | None = None
    """What was done, for a next round to judge; `None` when there is no answer that says something of the plan."""
    score: float | None = None
    """How right the answer is, 0 to 1; `None` when there is no plan, or when a call to a worker or a judge failed."""
    explanation: Text = ""
    """Why the plan could not be read or run, or why the answer has this score."""
    usage: Usage = Usage()
    """What the workers used."""
    seconds: float = 0.0
    """The longest chain of steps, cached calls being as long as when they were first made."""

    @property
    def valid(self) -> bool:
        """Whether the plan could be read and may run."""
        return self.workflow is not None or self.accepts

    @property
    def masked(self) -> bool:
        """Whether a call to a worker or a judge failed, so that nothing is known of the plan."""
        return self.valid and self.score is None

    @property
    def right(self) -> bool:
        """Whether the answer is wholly right."""
        return self.score == 1


class Drawn(Value):
    """A plan that was drawn in training, as it is kept."""

    step: int
    question: str
    text: Text
    workflow: Workflow | None
    score: float | None
    reward: float | None
    explanation: Text
    round: int = 1
    before: float | None = None
    """In a second round, the score of the answer that was judged."""

    @classmethod
    def of(
        cls, step: int, exercise: Exercise, outcome: Outcome, reward: float | None, *, before: Outcome | None = None
    ) -> Self:
        """What is kept of an outcome."""
        return cls(
            step=step,
            round=1 if before is None else 2,
            before=before and before.score,
            question=exercise.sample.question,
            text=outcome.text,
            workflow=outcome.workflow,
            score=outcome.score,
            reward=reward,
            explanation=outcome.explanation,
        )


@dataclass(frozen=True)
class Examiner:
    """Reads, runs and scores plans."""

    scorer: Scorer
    limits: Limits = field(default_factory=Limits)
    """Of each run."""
    retries: int = 5
    """Most repetitions of a call that failed for a reason that may pass (supplement: 5)."""
    concurrency: int = 64
    """Most plans that are run at once."""
    _places: PerLoop[asyncio.Semaphore] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", PerLoop(lambda: asyncio.Semaphore(self.concurrency)))

    async def outcomes(
        self, exercises: Sequence[Exercise], texts: Sequence[str], before: Sequence[Outcome | None] = ()
    ) -> list[Outcome]:
        """What came of each text, as a plan for the exercise beside it; see `outcome`."""
        judged = before or (None,) * len(texts)
        return list(await asyncio.gather(*map(self.outcome, exercises, texts, judged)))

    async def outcome(self, exercise: Exercise, text: str, before: Outcome | None = None) -> Outcome:
        """What comes of `text` as a plan for `exercise`.

        Args:
            exercise: the question, its pool, and the rounds that were done.
            text: the plan.
            before: what came of the last of these rounds. Its score stands if the plan accepts its answer.
        """
        try:
            workflow = parse(text, exercise.space, form=exercise.plan.form, repair=False).workflow
        except WorkflowError as error:
            return Outcome(text=text, explanation=str(error))
        if workflow is None:
            assert before is not None  # in the first round no plan is empty
            return Outcome(text=text, accepts=True, score=before.score, explanation=before.explanation)
        async with self._places.get():
            return await self._run(exercise, PlanRecord(source="planner", text=text, workflow=workflow))

    async def _run(self, exercise: Exercise, plan: PlanRecord) -> Outcome:
        planner = ScriptedModel("no plan is asked for here: it is given")
        conductor = Conductor(planner, exercise.pool, access=exercise.plan.access, retries=self.retries)
        bounds = {"rounds": len(exercise.before) + 1, "steps": exercise.plan.max_steps}
        # Taken up as the planner's own: what a later round may recall and what it is shown are then as in serving.
        written = [*exercise.before, Round(plan=plan)]
        try:
            trace = await conductor.run(
                exercise.sample.question, resume=written, limits=self.limits.model_copy(update=bounds)
            )
        except RunError as failed:
            trace = failed.trace
        alone = trace.model_copy(update={"rounds": trace.rounds[-1:]})
        told = {"text": plan.text, "workflow": plan.workflow, "usage": alone.usage, "seconds": alone.latency}
        failure = failed_call(alone)
        if failure is not None:
            return Outcome(**told, explanation=failure)
        try:
            score = await self.scorer(exercise.sample, trace.text)
        except ModelError as error:
            return Outcome(**told, explanation=f"the answer could not be scored: {error}")
        return Outcome(**told, round=trace.rounds[-1], score=score.value, explanation=score.explanation)


def failed_call(trace: Trace) -> str | None:
    """Why the answer says nothing of the plan: a worker failed, or another one had to step in. `None` if it does."""
    for result in trace.results():
        if result.status == "failed" or result.step.worker != result.planned_worker:
            return f"step {result.index + 1}, {result.planned_worker}: {result.error}"
    return None if trace.completion else trace.error
