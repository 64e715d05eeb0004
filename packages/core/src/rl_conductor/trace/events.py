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


class PlanDelta(Value):
    """A piece of the plan's text, as the planner writes it."""

    type: Literal["plan_delta"] = "plan_delta"
    round: int
    text: Text


class PlanRejected(Value):
    """A sample of the planner was not a valid plan; another is sampled, or the fallback is used."""

    type: Literal["plan_rejected"] = "plan_rejected"
    round: int
    error: Text
    calls: tuple[Call, ...] = Field(default=(), exclude_if=not_)
    """The planner's calls so far."""


class WorkflowPlanned(Value):
    """The round's plan is ready; `plan.workflow` is `None` if it accepts the previous answer."""

    type: Literal["workflow_planned"] = "workflow_planned"
    round: int
    plan: PlanRecord


class StepStarted(Value):
    """A worker is called for a step; repeated for each retry and when the step moves to another worker."""

    type: Literal["step_started"] = "step_started"
    round: int
    index: int
    worker: str
    attempt: int
    access: frozenset[int] = frozenset()
    """Positions of the earlier steps that the step reads."""


class StepFinished(Value):
    """A step succeeded, failed or was skipped."""

    type: Literal["step_finished"] = "step_finished"
    round: int
    result: StepResult


class AnswerDelta(Value):
    """A piece of the answer's text, as the final worker writes it."""

    type: Literal["answer_delta"] = "answer_delta"
    text: Text
    is_refusal: bool = Field(default=False, exclude_if=not_)
    """Whether it is the model's refusal in place of an answer, in one piece."""


class Finished(Value):
    """The run has ended; always the last event."""

    type: Literal["finished"] = "finished"
    trace: Trace


Event = Annotated[
    PlanStarted | PlanDelta | PlanRejected | WorkflowPlanned | StepStarted | StepFinished | AnswerDelta | Finished,
    Field(discriminator="type"),
]
"""Something that happened in a run; `Conductor.events` yields these."""

Listener = Callable[[Event], None]
"""Called with every event of a run, as it happens."""


def ignore(_: Event) -> None:
    """Ignores an event; the default listener."""
