"""What a reply tells beside its answer: who did what, and what it used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from rl_conductor.trace.summary import Summary, depth
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Usage, total


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
        "total": used(traces).model_dump(mode="json"),
        "planning": planning.model_dump(mode="json"),
        "workers": {name: usage.model_dump(mode="json") for name, usage in workers.items()},
    }


def told(trace: Trace, how: Literal["none", "summary", "full"]) -> dict[str, Any]:
    """The reply's own field, as a mapping to be merged: nothing, a summary, or the whole trace as well."""
    if how == "none":
        return {}
    full = {"trace": trace.model_dump(mode="json")} if how == "full" else {}
    return {"conductor": Summary.of(trace).model_dump(mode="json") | full}


def headers(traces: Sequence[Trace]) -> dict[str, str]:
    """What only a finished reply can say in its head."""
    return {
        "x-conductor-cost-usd": f"{used(traces).cost:f}",
        "x-conductor-plan-depth": str(max(map(depth, traces))),
    }
