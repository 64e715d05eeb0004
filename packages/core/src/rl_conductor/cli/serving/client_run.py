"""A run as a client sees it: messages about the progress, and the result."""

from __future__ import annotations

from rl_conductor.trace.events import Event, PlanRejected, StepFinished, StepStarted, WorkflowPlanned
from rl_conductor.trace.summary import StepSummary, Summary
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Value


class StepReport(Value):
    """One step of a run."""

    round: int
    worker: str
    subtask: str
    status: str
    error: str | None
    model: str | None
    seconds: float
    cost_usd: float

    @classmethod
    def of(cls, number: int, step: StepSummary) -> StepReport:
        return cls(
            round=number,
            worker=step.worker,
            subtask=step.subtask,
            status=step.status,
            error=step.error,
            model=step.model,
            seconds=step.seconds,
            cost_usd=float(step.usage.cost),
        )


class AskResult(Value):
    """The answer with its cost and steps."""

    answer: str
    error: str | None
    """Why there is no answer."""
    run: str
    model: str | None
    """The model that gave the answer."""
    seconds: float
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    unpriced_calls: int
    """Calls with an unknown price: when this is not 0, `cost_usd` is a lower bound."""
    steps: tuple[StepReport, ...]

    @classmethod
    def of(cls, trace: Trace) -> AskResult:
        summary = Summary.of(trace)
        return cls(
            answer=trace.completion.text if trace.completion else "",
            error=summary.error,
            run=summary.run,
            model=summary.model,
            seconds=summary.seconds,
            calls=summary.usage.calls,
            input_tokens=summary.usage.input_tokens,
            output_tokens=summary.usage.output_tokens,
            cost_usd=float(summary.usage.cost),
            unpriced_calls=summary.usage.unpriced_calls,
            steps=tuple(
                StepReport.of(number, step) for number, round_ in enumerate(summary.rounds) for step in round_.steps
            ),
        )


def progress_message(event: Event) -> str | None:
    """Describes an event to the user of a client; `None` for events that are not reported."""
    match event:
        case WorkflowPlanned(plan=plan):
            steps = plan.workflow.steps if plan.workflow else ()
            return (
                f"planned {len(steps)} {'step' if len(steps) == 1 else 'steps'}" if steps else "the answer was accepted"
            )
        case PlanRejected(error=error):
            return f"a plan was rejected: {error}"
        case StepStarted(index=index, worker=worker):
            return f"step {index + 1}: {worker} started"
        case StepFinished(result=result):
            return f"step {result.index + 1}: {result.step.worker} {result.status}"
        case _:
            return None
