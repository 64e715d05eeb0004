"""Answers from the response cache: a run of their own, in which nothing was called or paid."""

from __future__ import annotations

from datetime import UTC, datetime

from rl_conductor.trace.trace import Call, Round, Trace
from rl_conductor.types import Usage
from rl_conductor_server.store import NewRun


def cached_trace(trace: Trace, run: NewRun) -> Trace:
    """Returns the trace of an earlier run as that of `run`, without its usage and times."""
    assert trace.completion is not None
    return trace.model_copy(
        update={
            "id": run.id,
            "created": datetime.fromtimestamp(run.created, UTC),
            "rounds": tuple(_unpaid(round_) for round_ in trace.rounds),
            "completion": trace.completion.model_copy(update={"usage": Usage()}),
            "seconds": 0.0,
        }
    )


def _unpaid(round_: Round) -> Round:
    results = tuple(
        result.model_copy(update={"calls": tuple(map(_unpaid_call, result.calls))}) for result in round_.results
    )
    plan = round_.plan.model_copy(update={"calls": tuple(map(_unpaid_call, round_.plan.calls))})
    return round_.model_copy(update={"plan": plan, "results": results})


def _unpaid_call(call: Call) -> Call:
    return call.model_copy(update={"usage": Usage()})
