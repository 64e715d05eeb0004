"""Answers from the response cache: a run of their own, in which nothing was called or paid."""

from __future__ import annotations

from datetime import UTC, datetime

from rl_conductor.trace.trace import Trace
from rl_conductor.types import Usage
from rl_conductor_server.store import NewRun


def cached_trace(trace: Trace, run: NewRun) -> Trace:
    """Returns the trace of an earlier run as that of `run`, without its usage and times."""
    assert trace.completion is not None
    return trace.model_copy(
        update={
            "id": run.id,
            "created": datetime.fromtimestamp(run.created, UTC),
            "rounds": tuple(round_.without_usage() for round_ in trace.rounds),
            "completion": trace.completion.model_copy(update={"usage": Usage()}),
            "seconds": 0.0,
        }
    )
