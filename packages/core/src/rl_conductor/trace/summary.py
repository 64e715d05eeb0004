"""Summarises a run for hosts: metadata returned beside the answer, and progress while it runs. Pure.

Fields have the same names as in the `Trace`; rounds and steps count from 0.
"""

from __future__ import annotations

from collections import Counter
from operator import not_
from typing import Any, Literal, Self

from pydantic import Field

from rl_conductor.trace.checks import GuardrailCheck
from rl_conductor.trace.events import Event, PlanRejected, StepFinished, StepStarted, WorkflowPlanned
from rl_conductor.trace.routing_decision import RoutingDecision
from rl_conductor.trace.trace import Answer, NestedRun, PlanOrigin, PlanRecord, Round, StepResult, Trace
from rl_conductor.types import Text, Usage, Value
from rl_conductor.workflow.workflow import Step


class PlannedStep(Value):
    """A step of a plan, before it runs."""

    step: int
    """Its position in the plan."""
    worker: str
    subtask: str
    access: tuple[int, ...]
    """Positions of the steps whose replies it may read."""
    inputs: tuple[str, ...] | None = Field(default=None, exclude_if=lambda inputs: inputs is None)
    """The user's earlier turns and attachments that it sees; without this field, all of them."""

    @classmethod
    def of(cls, index: int, step: Step) -> Self:
        access, inputs = tuple(sorted(step.access)), None if step.inputs is None else tuple(sorted(step.inputs))
        return cls(step=index, worker=step.worker, subtask=step.subtask, access=access, inputs=inputs)


class StepSummary(PlannedStep):
    """A step that finished, failed or was skipped, with its cost and duration."""

    status: Literal["ok", "failed", "skipped"]
    error: Text | None
    model: str | None
    """The model that answered, as reported by its vendor."""
    seconds: float
    usage: Usage
    nested: tuple[NestedSummary, ...] = Field(default=(), exclude_if=not_)
    """Runs of conductors inside of the step. Their usage is part of the step's."""
    tools: dict[str, int] = Field(default_factory=dict, exclude_if=not_)
    """The number of uses of each tool of the worker's own, by name."""
    checks: tuple[GuardrailCheck, ...] = Field(default=(), exclude_if=not_)
    """Checks of its prompts and replies by guardrails."""

    @classmethod
    def of_result(cls, result: StepResult) -> Self:
        return cls(
            **dict(PlannedStep.of(result.index, result.step)),
            status=result.status,
            error=result.error,
            model=next((call.completion.model for call in reversed(result.calls) if call.completion), None),
            seconds=_round(result.seconds),
            usage=result.usage,
            nested=tuple(NestedSummary.of(run) for call in result.calls if call.nested for run in call.nested.runs),
            tools=Counter(use.name for call in result.calls if call.nested for use in call.nested.tools),
            checks=result.checks,
        )


class NestedSummary(Value):
    """A conductor's run inside of a step."""

    run: str
    planner: str
    answer: Answer | None
    error: Text | None
    rounds: tuple[RoundSummary, ...]
    seconds: float

    @classmethod
    def of(cls, run: NestedRun) -> Self:
        return cls(
            run=run.id,
            planner=run.planner,
            answer=run.answer,
            error=run.error,
            rounds=tuple(map(RoundSummary.of, run.rounds)),
            seconds=_round(run.seconds),
        )


class PlanSummary(Value):
    """The origin and cost of a plan."""

    source: PlanOrigin
    routing: RoutingDecision | None
    repairs: tuple[Text, ...] = ()
    """Changes to the plan as written, such as removed surplus steps."""
    errors: tuple[Text, ...] = ()
    """Why earlier samples were rejected."""
    planning_reason: Text = Field(default="", exclude_if=not_)
    """Why no learned workflow ran, or why the trained planner left the request to the general one."""
    usage: Usage
    checks: tuple[GuardrailCheck, ...] = Field(default=(), exclude_if=not_)
    """Checks of the request by guardrails."""

    @classmethod
    def of(cls, plan: PlanRecord) -> Self:
        return cls(
            source=plan.source,
            routing=plan.routing,
            repairs=plan.repairs,
            errors=plan.errors,
            planning_reason=plan.planning_reason,
            usage=plan.usage,
            checks=plan.checks,
        )


class RoundSummary(Value):
    """One plan and the results of its steps."""

    plan: PlanSummary
    steps: tuple[StepSummary, ...]

    @classmethod
    def of(cls, round_: Round) -> Self:
        return cls(plan=PlanSummary.of(round_.plan), steps=tuple(map(StepSummary.of_result, round_.results)))


class Summary(Value):
    """The workers, steps, duration and cost of a run.

    Apart from subtasks, errors and repairs, which may quote it, a summary contains no conversation text.
    """

    run: str
    """The id of its trace."""
    planner: str
    """The planner's model, as `provider:name`."""
    model: str | None
    """The model that gave the answer, as reported by its vendor; `None` without an answer."""
    answer: Answer | None
    """The step that gave the answer; `None` without an answer."""
    error: Text | None
    """Why there is no answer."""
    rounds: tuple[RoundSummary, ...]
    """The plans and their steps, in order."""
    depth: int
    """The number of sequential steps on the longest path, summed over all rounds."""
    seconds: float
    """Duration of the run."""
    usage: Usage
    """The usage of the whole run."""
    planning: Usage
    """The part of it that planning used."""
    workers: dict[str, Usage]
    """The part of it that each worker used, by name."""

    @classmethod
    def of(cls, trace: Trace) -> Self:
        """Summarises the rounds, the steps and the usage of a trace."""
        return cls(
            run=trace.id,
            planner=trace.planner,
            model=trace.completion.model if trace.completion else None,
            answer=trace.answer,
            error=trace.error,
            rounds=tuple(map(RoundSummary.of, trace.rounds)),
            depth=depth(trace),
            seconds=_round(trace.seconds),
            usage=trace.usage,
            planning=trace.planning,
            workers=trace.usage_by_worker,
        )


def depth(trace: Trace) -> int:
    """Counts the sequential steps on the longest path, summed over all rounds."""
    return sum(len(round_.workflow.layers) for round_ in trace.rounds if round_.workflow)


def progress(event: Event) -> dict[str, Any] | None:
    """Converts `event` to a JSON object for progress reports; `None` for events that are not reported.

    Pieces of the answer and the end of the run are not reported, because every host has its own format for them.
    """
    fields: dict[str, Any]
    match event:
        case WorkflowPlanned(plan=plan):
            steps = plan.workflow.steps if plan.workflow else ()
            planned = [PlannedStep.of(index, step).model_dump(mode="json") for index, step in enumerate(steps)]
            fields = {"plan": PlanSummary.of(plan).model_dump(mode="json"), "steps": planned}
        case PlanRejected(error=error):
            fields = {"error": error}
        case StepStarted():
            fields = {"step": event.index, "worker": event.worker, "attempt": event.attempt}
        case StepFinished(result=result):
            fields = StepSummary.of_result(result).model_dump(mode="json")
        case _:
            return None
    return {"type": event.type, "round": event.round, **fields}


def _round(seconds: float) -> float:
    return round(seconds, 3)
