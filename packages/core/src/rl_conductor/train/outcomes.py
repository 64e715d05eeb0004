"""What came of a plan: read strictly, run by the real executor, its answer scored. Knows neither torch nor rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from rl_conductor.conductor import Conductor
from rl_conductor.errors import RunError, WorkflowError
from rl_conductor.limits import Limits
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.parser import parse
from rl_conductor.sync import PerLoop
from rl_conductor.tasks.base import Scorer
from rl_conductor.trace import Trace
from rl_conductor.train.exercises import Exercise
from rl_conductor.types import Text, Usage, Value
from rl_conductor.workflow import Workflow


class Outcome(Value):
    """One plan, and what came of it."""

    text: Text
    """The plan as written."""
    workflow: Workflow | None = None
    """The plan as read; `None` when it is no plan, or one that may not run."""
    score: float | None = None
    """How right the answer is, 0 to 1; `None` when there is no plan, or when a call to a worker failed."""
    explanation: Text = ""
    """Why the plan could not be read or run, or why the answer has this score."""
    usage: Usage = Usage()
    """What the workers used."""
    seconds: float = 0.0
    """The longest chain of steps; what was replayed from a cache took none."""

    @property
    def valid(self) -> bool:
        """Whether the plan could be read and may run."""
        return self.workflow is not None

    @property
    def masked(self) -> bool:
        """Whether a call to a worker failed, so that nothing is known of the plan."""
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

    @classmethod
    def of(cls, step: int, exercise: Exercise, outcome: Outcome, reward: float | None) -> Self:
        """What is kept of an outcome."""
        return cls(
            step=step,
            question=exercise.sample.question,
            text=outcome.text,
            workflow=outcome.workflow,
            score=outcome.score,
            reward=reward,
            explanation=outcome.explanation,
        )


@dataclass(frozen=True)
class Judge:
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

    async def outcomes(self, exercises: Sequence[Exercise], texts: Sequence[str]) -> list[Outcome]:
        """What came of each text, as a plan for the exercise beside it."""
        return list(await asyncio.gather(*map(self.outcome, exercises, texts)))

    async def outcome(self, exercise: Exercise, text: str) -> Outcome:
        """What comes of `text` as a plan for `exercise`."""
        try:
            workflow = parse(text, exercise.space, form=exercise.form, repair=False).workflow
        except WorkflowError as error:
            return Outcome(text=text, explanation=str(error))
        assert workflow is not None  # in the first round no plan is empty
        async with self._places.get():
            return await self._run(exercise, text, workflow)

    async def _run(self, exercise: Exercise, text: str, workflow: Workflow) -> Outcome:
        planner = ScriptedModel("no plan is asked for here: it is given")
        conductor = Conductor(planner, exercise.pool, access=exercise.space.access, retries=self.retries)
        try:
            trace = await conductor.run(exercise.sample.question, workflow=workflow, limits=self.limits)
        except RunError as failed:
            trace = failed.trace
        told = {"text": text, "workflow": workflow, "usage": trace.usage, "seconds": trace.critical_path}
        failure = failed_call(trace)
        if failure is not None:
            return Outcome(**told, explanation=failure)
        score = await self.scorer(exercise.sample, trace.text)
        return Outcome(**told, score=score.value, explanation=score.explanation)


def failed_call(trace: Trace) -> str | None:
    """Why the answer says nothing of the plan: a worker failed, or another one had to step in. `None` if it does."""
    for result in trace.results():
        if result.status == "failed" or result.step.worker != result.planned_worker:
            return f"step {result.index + 1}, {result.planned_worker}: {result.error}"
    return None if trace.completion else trace.error
