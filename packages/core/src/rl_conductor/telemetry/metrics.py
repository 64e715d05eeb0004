"""What runs add to the meters: tokens, seconds and dollars of each call, and seconds of each run."""

from __future__ import annotations

from opentelemetry.metrics import Meter

from rl_conductor.telemetry import conventions as name
from rl_conductor.telemetry.attributes import error_of, model_of
from rl_conductor.trace.observers import Begun
from rl_conductor.trace.trace import Call, Trace


class Meters:
    """The instruments."""

    def __init__(self, meter: Meter) -> None:
        self._tokens = meter.create_histogram(
            name.TOKEN_USAGE, "{token}", "Tokens used.", explicit_bucket_boundaries_advisory=name.TOKENS
        )
        self._seconds = meter.create_histogram(
            name.OPERATION_DURATION, "s", "Seconds a call took.", explicit_bucket_boundaries_advisory=name.SECONDS
        )
        self._workflow_seconds = meter.create_histogram(
            name.WORKFLOW_DURATION,
            "s",
            "Seconds a run took.",
            explicit_bucket_boundaries_advisory=name.WORKFLOW_SECONDS,
        )
        self._dollars = meter.create_counter(name.COST, "{USD}", "US dollars spent.")

    def run_over(self, begun: Begun, trace: Trace) -> None:
        """Count a run and the calls that this process made for it."""
        workflow = {name.WORKFLOW: begun.conductor} | error_of(trace)
        self._workflow_seconds.record(trace.seconds - begun.elapsed, workflow)
        for call in trace.calls():
            if call.started >= begun.elapsed and _was_made(call):
                self._count(call)

    def _count(self, call: Call) -> None:
        said = {name.OPERATION: name.CHAT, **model_of(call.model)}
        if call.completion is not None:
            said[name.RESPONSE_MODEL] = call.completion.model
        self._seconds.record(call.seconds, said | error_of(call))
        for kind, count in (("input", call.usage.input_tokens), ("output", call.usage.output_tokens)):
            if count:
                self._tokens.record(count, {**said, name.TOKEN_TYPE: kind})
        self._dollars.add(float(call.usage.cost), said)


def _was_made(call: Call) -> bool:
    """Not one that was refused or answered from a cache; and a conductor in the pool counts its own calls."""
    fresh = call.usage.calls > call.usage.cached_calls
    return fresh and not call.model.startswith("conductor:")
