"""What a reply tells beside its answer: who did what, what it used, and how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from rl_conductor.events import Event, StepFinished, StepStarted, WorkflowPlanned
from rl_conductor.trace import PlanRecord, Round, StepResult, Trace
from rl_conductor.types import Usage, total
from rl_conductor.workflow import Workflow


def used(traces: Sequence[Trace]) -> Usage:
    """What all runs behind a reply used, planning and every step included."""
    return total(trace.usage for trace in traces)


def orchestration(traces: Sequence[Trace]) -> Usage:
    """The share of it that was not spent on writing the answers themselves."""
    whole, answers = used(traces), total(_answering(trace) for trace in traces)
    names = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "calls")
    return Usage(**{name: getattr(whole, name) - getattr(answers, name) for name in names})


def _answering(trace: Trace) -> Usage:
    if trace.answer is None:
        return Usage()
    calls = trace.rounds[trace.answer.round].results[trace.answer.step].calls
    return next((call.usage for call in reversed(calls) if call.outcome == "ok"), Usage())


def breakdown(traces: Sequence[Trace]) -> dict[str, Any]:
    """Usage by who used it."""
    workers: dict[str, Usage] = {}
    for trace in traces:
        for name, usage in trace.usage_by_worker().items():
            workers[name] = workers.get(name, Usage()) + usage
    planning = total(trace.planning for trace in traces)
    return {
        "total": _usage(used(traces)),
        "planning": _usage(planning),
        "workers": {name: _usage(usage) for name, usage in workers.items()},
    }


def _usage(usage: Usage) -> dict[str, Any]:
    shown = usage.model_dump(include={"input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "calls"})
    exact = {} if not usage.unpriced_calls else {"unpriced_calls": usage.unpriced_calls}
    return shown | {"cost_usd": f"{usage.cost:f}"} | exact


def depth(trace: Trace) -> int:
    """How many steps stood one behind the other, over all rounds."""
    return sum(len(one.workflow.layers) for one in trace.rounds if one.workflow)


def told(trace: Trace, how: Literal["none", "summary", "full"]) -> dict[str, Any]:
    """The reply's own field, as a mapping to be merged: nothing, a summary, or the whole trace as well."""
    if how == "none":
        return {}
    full = {"trace": trace.model_dump(mode="json")} if how == "full" else {}
    return {"conductor": summary(trace) | full}


def summary(trace: Trace) -> dict[str, Any]:
    """The run in short."""
    return {
        "run": trace.id,
        "cost_usd": f"{trace.usage.cost:f}",
        "seconds": round(trace.seconds, 3),
        "depth": depth(trace),
        "answer": None if trace.answer is None else trace.answer.model_dump(),
        "rounds": [_round(one) for one in trace.rounds],
    }


def _round(one: Round) -> dict[str, Any]:
    planning = total(call.usage for call in one.plan.calls)
    return {
        "plan": {"source": one.plan.source, **_usage(planning), **_tier(one.plan)},
        "steps": [_step(result) for result in one.results],
    }


def _tier(plan: PlanRecord) -> dict[str, Any]:
    return {} if plan.tier is None else {"tier": plan.tier.model_dump()}


def _step(result: StepResult) -> dict[str, Any]:
    answered = next((call.completion.model for call in reversed(result.calls) if call.completion), None)
    return {
        "worker": result.step.worker,
        "model": answered,
        "subtask": result.step.subtask,
        "access": sorted(result.step.access),
        "status": result.status,
        "seconds": round(result.seconds, 3),
        **_usage(total(call.usage for call in result.calls)),
    }


def headers(traces: Sequence[Trace]) -> dict[str, str]:
    """What only a finished reply can say in its head."""
    return {
        "x-conductor-cost-usd": f"{used(traces).cost:f}",
        "x-conductor-plan-depth": str(max(map(depth, traces))),
    }


def progress(event: Event) -> dict[str, Any] | None:
    """What a waiting caller is told of an event; `None` when there is nothing to tell."""
    match event:
        case WorkflowPlanned(plan=plan):
            return {"type": "planned", "round": event.round, "steps": _plan(plan.workflow)}
        case StepStarted():
            return event.model_dump()
        case StepFinished(result=result):
            return {"type": "step_finished", "round": event.round, "index": result.index, **_step(result)}
        case _:
            return None


def _plan(workflow: Workflow | None) -> list[dict[str, Any]]:
    steps = workflow.steps if workflow else ()
    return [{"worker": one.worker, "subtask": one.subtask, "access": sorted(one.access)} for one in steps]
