"""What is told of a run while it goes on. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from rl_conductor.trace.trace import PlanRecord, StepResult, Trace
from rl_conductor.types import Text, Value


class PlanStarted(Value):
    """The Conductor begins to write a plan."""

    type: Literal["plan_started"] = "plan_started"
    round: int


class PlanDelta(Value):
    """A piece of the plan, as it is written."""

    type: Literal["plan_delta"] = "plan_delta"
    round: int
    text: Text


class PlanRejected(Value):
    """A sample of the planner was no usable plan; another is drawn, or the fall-back is taken."""

    type: Literal["plan_rejected"] = "plan_rejected"
    round: int
    error: Text


class WorkflowPlanned(Value):
    """The plan is made; `plan.workflow` is `None` when it accepts the previous answer."""

    type: Literal["workflow_planned"] = "workflow_planned"
    round: int
    plan: PlanRecord


class StepStarted(Value):
    """A worker is asked. Comes again when a step is retried or moves to another worker."""

    type: Literal["step_started"] = "step_started"
    round: int
    index: int
    worker: str
    attempt: int


class StepFinished(Value):
    """A step is done, failed or skipped."""

    type: Literal["step_finished"] = "step_finished"
    round: int
    result: StepResult


class AnswerDelta(Value):
    """A piece of the answer, as the final worker writes it."""

    type: Literal["answer_delta"] = "answer_delta"
    text: Text


class Finished(Value):
    """The run is over; always the last event."""

    type: Literal["finished"] = "finished"
    trace: Trace


Event = Annotated[
    PlanStarted | PlanDelta | PlanRejected | WorkflowPlanned | StepStarted | StepFinished | AnswerDelta | Finished,
    Field(discriminator="type"),
]

Listener = Callable[[Event], None]
"""Told of everything in a run as it happens."""


def ignore(_: Event) -> None:
    """A listener to whom nothing matters."""
