"""A run in brief, as plain JSON: for `response_metadata`, and for the custom events that report it live. Pure."""

from __future__ import annotations

from typing import Any

from rl_conductor.events import Event, PlanRejected, StepFinished, StepStarted, WorkflowPlanned
from rl_conductor.trace import PlanRecord, StepResult, Trace
from rl_conductor.types import Usage, total
from rl_conductor.workflow import Step


def summary(trace: Trace) -> dict[str, Any]:
    """Who did what, in which time and for how much."""
    return {
        "run": trace.id,
        "answered_by": trace.completion.model if trace.completion else None,
        "planner": trace.planner,
        "rounds": [
            {"plan": one.plan.source, "steps": [_result(result) for result in one.results]} for one in trace.rounds
        ],
        "usage": {"planning": _usage(trace.planning)}
        | {worker: _usage(usage) for worker, usage in trace.usage_by_worker().items()},
        "cost": str(trace.usage.cost),
        "unpriced_calls": trace.usage.unpriced_calls,
        "seconds": round(trace.seconds, 3),
    }


def announcement(event: Event) -> tuple[str, dict[str, Any]] | None:
    """The name and data of the custom event for `event`; `None` for what is told in other ways, such as tokens."""
    match event:
        case WorkflowPlanned():
            return "conductor_planned", {"round": event.round + 1, **_plan(event.plan)}
        case PlanRejected():
            return "conductor_plan_rejected", {"round": event.round + 1, "error": event.error}
        case StepStarted():
            told = {"step": event.index + 1, "worker": event.worker, "attempt": event.attempt}
            return "conductor_step_started", {"round": event.round + 1, **told}
        case StepFinished():
            return "conductor_step_finished", {"round": event.round + 1, **_result(event.result)}
    return None


def _plan(plan: PlanRecord) -> dict[str, Any]:
    steps = plan.workflow.steps if plan.workflow else ()
    return {"source": plan.source, "steps": [_step(index, step) for index, step in enumerate(steps)]}


def _step(index: int, step: Step) -> dict[str, Any]:
    reads = sorted(read + 1 for read in step.access)
    return {"step": index + 1, "worker": step.worker, "subtask": step.subtask, "reads": reads}


def _result(result: StepResult) -> dict[str, Any]:
    used = total(call.usage for call in result.calls)
    told = {**_step(result.index, result.step), "status": result.status, "error": result.error}
    return {**told, "seconds": round(result.seconds, 3), "tokens": used.total_tokens}


def _usage(usage: Usage) -> dict[str, Any]:
    return usage.model_dump(mode="json", exclude={"unpriced_calls"})
