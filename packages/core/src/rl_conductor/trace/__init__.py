"""A run as data: the trace, events, the summary, and observers of all runs.

In: events and results of the execution. Out: values that can be stored, replayed and reported.
"""

from rl_conductor.trace.checks import GuardrailCheck
from rl_conductor.trace.events import (
    AnswerDelta,
    Event,
    Finished,
    Listener,
    PlanDelta,
    PlanRejected,
    PlanStarted,
    ReasoningDelta,
    StepFinished,
    StepStarted,
    WorkflowPlanned,
)
from rl_conductor.trace.feedback import Feedback
from rl_conductor.trace.observers import RunInfo, observe
from rl_conductor.trace.summary import Summary, progress
from rl_conductor.trace.trace import Call, Nested, NestedRun, PlanRecord, Round, StepResult, ToolUse, Trace

__all__ = [
    "AnswerDelta",
    "Call",
    "Event",
    "Feedback",
    "Finished",
    "GuardrailCheck",
    "Listener",
    "Nested",
    "NestedRun",
    "PlanDelta",
    "PlanRecord",
    "PlanRejected",
    "PlanStarted",
    "ReasoningDelta",
    "Round",
    "RunInfo",
    "StepFinished",
    "StepResult",
    "StepStarted",
    "Summary",
    "ToolUse",
    "Trace",
    "WorkflowPlanned",
    "observe",
    "progress",
]
