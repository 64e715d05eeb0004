"""A run as data: the trace, events while it goes on, the summary, the audit record, observers.

In: what execution reports. Out: values that can be stored, replayed and reported.
"""

from rl_conductor.trace.events import (
    AnswerDelta,
    Event,
    Finished,
    Listener,
    PlanDelta,
    PlanRejected,
    PlanStarted,
    StepFinished,
    StepStarted,
    WorkflowPlanned,
)
from rl_conductor.trace.observers import Begun, observe
from rl_conductor.trace.summary import Summary, progress
from rl_conductor.trace.trace import Call, PlanRecord, Round, StepResult, Trace

__all__ = [
    "AnswerDelta",
    "Begun",
    "Call",
    "Event",
    "Finished",
    "Listener",
    "PlanDelta",
    "PlanRecord",
    "PlanRejected",
    "PlanStarted",
    "Round",
    "StepFinished",
    "StepResult",
    "StepStarted",
    "Summary",
    "Trace",
    "WorkflowPlanned",
    "observe",
    "progress",
]
