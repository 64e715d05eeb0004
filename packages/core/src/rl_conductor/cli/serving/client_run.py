"""A run as a client sees it: its limits, messages about the progress, and the result."""

from __future__ import annotations

from pydantic import Field

from rl_conductor._internal.formatting import counted
from rl_conductor.trace.events import Event, PlanRejected, StepFinished, StepStarted, WorkflowPlanned
from rl_conductor.trace.summary import Summary
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Value
from rl_conductor.workflow.limits import Limits


class ClientLimits(Value):
    """Limits that a client passes with its question; they can only lower those of the conductor."""

    max_usd: float | None = Field(None, ge=0)
    max_seconds: float | None = Field(None, gt=0)
    max_steps: int | None = Field(None, ge=1)

    def lower(self, limits: Limits) -> Limits:
        """Returns the conductor's `limits`, lowered to these."""
        steps = self.max_steps or limits.steps
        return limits.lowered(Limits(usd=self.max_usd, seconds=self.max_seconds, steps=steps))


class AskResult(Value):
    """The answer of a run, with the summary that the server returns beside its answers."""

    answer: str
    """Empty if there is none; `summary.error` says why."""
    summary: Summary

    @classmethod
    def of(cls, trace: Trace) -> AskResult:
        return cls(answer=trace.text, summary=Summary.of(trace))


def progress_message(event: Event) -> str | None:
    """Describes an event to the user of a client; `None` for events that are not reported."""
    match event:
        case WorkflowPlanned(plan=plan):
            steps = plan.workflow.steps if plan.workflow else ()
            return f"planned {counted(len(steps), 'step')}" if steps else "the answer was accepted"
        case PlanRejected(error=error):
            return f"a plan was rejected: {error}"
        case StepStarted(index=index, worker=worker):
            return f"step {index + 1}: {worker} started"
        case StepFinished(result=result):
            return f"step {result.index + 1}: {result.step.worker} {result.status}"
        case _:
            return None
