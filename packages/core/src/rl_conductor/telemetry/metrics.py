"""Records metrics: the tokens, duration and cost of each call, and the duration of each run."""

from __future__ import annotations

from opentelemetry.metrics import Meter

from rl_conductor.telemetry import conventions as name
from rl_conductor.telemetry.attributes import error_attributes, model_attributes
from rl_conductor.trace.observers import RunInfo
from rl_conductor.trace.trace import Call, Trace


class Meters:
    """The OpenTelemetry instruments that runs are recorded with."""

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

    def record_run(self, run_info: RunInfo, trace: Trace) -> None:
        """Records a finished run and the calls that this process made for it."""
        workflow = {name.WORKFLOW: run_info.conductor} | error_attributes(trace)
        self._workflow_seconds.record(trace.seconds - run_info.elapsed, workflow)
        for call in trace.calls:
            if call.started >= run_info.elapsed and _is_counted(call):
                self._record_call(call)

    def _record_call(self, call: Call) -> None:
        attributes = {name.OPERATION: name.CHAT, **model_attributes(call.model)}
        if call.completion is not None:
            attributes[name.RESPONSE_MODEL] = call.completion.model
        self._seconds.record(call.seconds, attributes | error_attributes(call))
        for kind, count in (("input", call.usage.input_tokens), ("output", call.usage.output_tokens)):
            if count:
                self._tokens.record(count, {**attributes, name.TOKEN_TYPE: kind})
        self._dollars.add(float(call.usage.cost), attributes)


def _is_counted(call: Call) -> bool:
    """Returns whether a vendor was called, as opposed to a cache or a conductor, which records its own calls."""
    fresh = call.usage.calls > call.usage.cached_calls
    return fresh and not call.model.startswith("conductor:")
