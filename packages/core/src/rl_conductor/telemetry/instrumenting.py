"""Instruments all runs of this process with OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version

from opentelemetry import context
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import TracerProvider, get_tracer

from rl_conductor.telemetry import content
from rl_conductor.telemetry.conventions import SCHEMA
from rl_conductor.telemetry.metrics import Meters
from rl_conductor.telemetry.spans import RunSpans, fail, make_current
from rl_conductor.trace.events import Event, Finished, Listener
from rl_conductor.trace.observers import RunInfo, observe

LIBRARY = "rl_conductor"


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    with_content: bool | None = None,
) -> Callable[[], None]:
    """Records spans and metrics of all runs that begin from now on, and returns a function that stops it.

    Args:
        tracer_provider: receives the spans; the global provider by default.
        meter_provider: receives the metrics; the global provider by default.
        with_content: put message content on spans; by default, if `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`
            is `true`, `span_only` or `span_and_event`.
    """
    package = version("rl-conductor")
    tracer = get_tracer(LIBRARY, package, tracer_provider, SCHEMA)
    meters = Meters(get_meter(LIBRARY, package, meter_provider, SCHEMA))
    include_content = content.is_enabled() if with_content is None else with_content

    @contextmanager
    def watch(run_info: RunInfo) -> Iterator[Listener]:
        spans = RunSpans(tracer, run_info, with_content=include_content)

        def record(event: Event) -> None:
            spans(event)
            if isinstance(event, Finished):
                meters.record_run(run_info, event.trace)

        token = context.attach(context.get_current())
        make_current(spans.span)
        try:
            yield record
        except Exception as error:
            if not spans.is_finished:  # it failed before `Finished` was emitted
                fail(spans.span, type(error).__name__)
            raise
        finally:
            context.detach(token)
            spans.span.end()

    return observe(watch)
