"""Progress reports in streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_conductor.trace.events import Event, PlanRejected, StepFinished, WorkflowPlanned
from rl_conductor.trace.summary import progress
from rl_conductor.trace.trace import Call
from rl_conductor_server.access_errors import without_access_errors


def progress_report(event: Event, choice: int = 0) -> dict[str, Any] | None:
    """Converts an event of a choice to a progress report for tenants; `None` if it is not reported."""
    report = progress(without_access_errors(event, _calls_of(event)))
    return None if report is None else {"choice": choice, **report}


def _calls_of(event: Event) -> Sequence[Call]:
    match event:
        case PlanRejected():
            return event.calls
        case WorkflowPlanned():
            return event.plan.calls
        case StepFinished():
            return event.result.calls
        case _:
            return ()
