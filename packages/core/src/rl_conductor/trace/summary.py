"""A run in brief: what every host tells of it beside the answer, when it is over and while it goes on. Pure.

Fields have the names that they have in the `Trace`, and rounds and steps count from 0 as they do there.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from rl_conductor.trace.events import Event, PlanRejected, StepFinished, StepStarted, WorkflowPlanned
from rl_conductor.trace.trace import Answer, PlanRecord, PlanSource, Round, StepResult, TierDecision, Trace
from rl_conductor.types import Text, Usage, Value, total
from rl_conductor.workflow.workflow import Step


class PlannedStep(Value):
    """A step of a plan."""

    step: int
    """Its position in the plan."""
    worker: str
    subtask: str
    access: tuple[int, ...]
    """Positions of the steps whose replies it may see."""

    @classmethod
    def of(cls, index: int, step: Step) -> Self:
        """The step at this position."""
        return cls(step=index, worker=step.worker, subtask=step.subtask, access=tuple(sorted(step.access)))


class StepSummary(PlannedStep):
    """What became of a step."""

    status: Literal["ok", "failed", "skipped"]
    error: Text | None
    model: str | None
    """The model that really answered, as its vendor names it."""
    seconds: float
    usage: Usage


class PlanSummary(Value):
    """How a plan came about."""

    source: PlanSource
    tier: TierDecision | None
    repairs: tuple[Text, ...] = ()
    """What was changed in the plan as written, such as steps that were too many."""
    errors: tuple[Text, ...] = ()
    """Why plans before this one were rejected, and asked for again."""
    usage: Usage

    @classmethod
    def of(cls, plan: PlanRecord) -> Self:
        """The plan in brief."""
        return cls(
            source=plan.source,
            tier=plan.tier,
            repairs=plan.repairs,
            errors=plan.errors,
            usage=total(call.usage for call in plan.calls),
        )


class RoundSummary(Value):
    """One plan and what came of its steps."""

    plan: PlanSummary
    steps: tuple[StepSummary, ...]

    @classmethod
    def of(cls, one: Round) -> Self:
        """The round in brief."""
        return cls(plan=PlanSummary.of(one.plan), steps=tuple(map(_step, one.results)))


class Summary(Value):
    """Who did what in a run, in which time and for how much.

    Beside subtasks, errors and repairs, which may quote, it holds no word that was said.
    """

    run: str
    """The id of its trace."""
    planner: str
    """The Conductor's own model."""
    model: str | None
    """The model that really gave the answer, as its vendor names it; `None` when there is no answer."""
    answer: Answer | None
    error: Text | None
    rounds: tuple[RoundSummary, ...]
    depth: int
    """How many steps stood one behind the other, over all rounds."""
    seconds: float
    usage: Usage
    """Of the whole run."""
    planning: Usage
    """The share of planning."""
    workers: dict[str, Usage]
    """The share of each worker, by its name."""

    @classmethod
    def of(cls, trace: Trace) -> Self:
        """The run in brief."""
        return cls(
            run=trace.id,
            planner=trace.planner,
            model=trace.completion.model if trace.completion else None,
            answer=trace.answer,
            error=trace.error,
            rounds=tuple(map(RoundSummary.of, trace.rounds)),
            depth=depth(trace),
            seconds=_rounded(trace.seconds),
            usage=trace.usage,
            planning=trace.planning,
            workers=trace.usage_by_worker(),
        )


def depth(trace: Trace) -> int:
    """How many steps stood one behind the other, over all rounds."""
    return sum(len(one.workflow.layers) for one in trace.rounds if one.workflow)


def progress(event: Event) -> dict[str, Any] | None:
    """What is told of `event` while the run goes on, as plain JSON; `None` when there is nothing to tell.

    How pieces of the answer and the end are told is for each host to say.
    """
    told: dict[str, Any]
    match event:
        case WorkflowPlanned(plan=plan):
            steps = plan.workflow.steps if plan.workflow else ()
            planned = [PlannedStep.of(index, step).model_dump(mode="json") for index, step in enumerate(steps)]
            told = {"plan": PlanSummary.of(plan).model_dump(mode="json"), "steps": planned}
        case PlanRejected(error=error):
            told = {"error": error}
        case StepStarted():
            told = {"step": event.index, "worker": event.worker, "attempt": event.attempt}
        case StepFinished(result=result):
            told = _step(result).model_dump(mode="json")
        case _:
            return None
    return {"type": event.type, "round": event.round, **told}


def _step(result: StepResult) -> StepSummary:
    return StepSummary(
        **dict(PlannedStep.of(result.index, result.step)),
        status=result.status,
        error=result.error,
        model=next((call.completion.model for call in reversed(result.calls) if call.completion), None),
        seconds=_rounded(result.seconds),
        usage=total(call.usage for call in result.calls),
    )


def _rounded(seconds: float) -> float:
    return round(seconds, 3)
