"""The events that a run emits while it is in progress. Pure."""

from __future__ import annotations

from collections.abc import Callable
from operator import not_
from typing import Annotated, Literal

from pydantic import Field

from rl_conductor.trace.trace import Call, PlanRecord, StepResult, Trace
from rl_conductor.types import Text, Value


class PlanStarted(Value):
    """The planner starts to write a plan."""

    type: Literal["plan_started"] = "plan_started"
    round: int
    """The round, from 0."""


class PlanDelta(Value):
    """A piece of the plan's text, as the planner writes it."""

    type: Literal["plan_delta"] = "plan_delta"
    round: int
    """The round, from 0."""
    text: Text
    """The next piece of the plan."""


class PlanRejected(Value):
    """A sample of the planner was not a valid plan; another is sampled, or the fallback is used."""

    type: Literal["plan_rejected"] = "plan_rejected"
    round: int
    """The round, from 0."""
    error: Text
    """Why the plan was rejected."""
    calls: tuple[Call, ...] = Field(default=(), exclude_if=not_)
    """The planner's calls so far."""


class WorkflowPlanned(Value):
    """The round's plan is ready; `plan.workflow` is `None` if it accepts the previous answer."""

    type: Literal["workflow_planned"] = "workflow_planned"
    round: int
    """The round, from 0."""
    plan: PlanRecord
    """The accepted plan."""


class StepStarted(Value):
    """A worker is called for a step; repeated for each retry and when the step moves to another worker."""

    type: Literal["step_started"] = "step_started"
    round: int
    """The round of the step, from 0."""
    index: int
    """Position of the step in the workflow, from 0."""
    worker: str
    """The worker that is called."""
    attempt: int
    """Number of the attempt, from 1."""
    access: frozenset[int] = frozenset()
    """Positions of the earlier steps that the step reads."""


class StepFinished(Value):
    """A step succeeded, failed or was skipped."""

    type: Literal["step_finished"] = "step_finished"
    round: int
    """The round of the step, from 0."""
    result: StepResult
    """The reply or error of the step, with its calls."""


class AnswerDelta(Value):
    """A piece of the answer's text, as the final worker writes it."""

    type: Literal["answer_delta"] = "answer_delta"
    text: Text
    """The next piece of the answer."""
    is_refusal: bool = Field(default=False, exclude_if=not_)
    """Whether it is the model's refusal in place of an answer, in one piece."""


class ReasoningDelta(Value):
    """A piece of the final worker's reasoning, which comes before the answer. A failed attempt's is not taken back."""

    type: Literal["reasoning_delta"] = "reasoning_delta"
    text: Text
    """The next piece of the reasoning."""


class Finished(Value):
    """The run has ended; always the last event."""

    type: Literal["finished"] = "finished"
    trace: Trace
    """The whole run."""


Event = Annotated[
    PlanStarted
    | PlanDelta
    | PlanRejected
    | WorkflowPlanned
    | StepStarted
    | StepFinished
    | ReasoningDelta
    | AnswerDelta
    | Finished,
    Field(discriminator="type"),
]
"""Something that happened in a run; `Conductor.events` yields these."""

Listener = Callable[[Event], None]
"""Called with every event of a run, as it happens."""


def ignore(_: Event) -> None:
    """Ignores an event; the default listener."""
