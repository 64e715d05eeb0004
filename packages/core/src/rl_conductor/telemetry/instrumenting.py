"""`instrument`: from then on every run of this process is told to OpenTelemetry."""

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
from rl_conductor.trace.observers import Begun, observe

LIBRARY = "rl_conductor"


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    with_content: bool | None = None,
) -> Callable[[], None]:
    """Make spans and metrics of every run that begins from now on, until what is returned is called.

    Args:
        tracer_provider: where spans go; the global one without it.
        meter_provider: where metrics go; the global one without it.
        with_content: put what was said on the spans; else `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` decides,
            which must be `true`, `span_only` or `span_and_event` for that.
    """
    package = version("rl-conductor")
    tracer = get_tracer(LIBRARY, package, tracer_provider, SCHEMA)
    meters = Meters(get_meter(LIBRARY, package, meter_provider, SCHEMA))
    told_all = content.is_asked_for() if with_content is None else with_content

    @contextmanager
    def watch(begun: Begun) -> Iterator[Listener]:
        spans = RunSpans(tracer, begun, with_content=told_all)

        def hear(event: Event) -> None:
            spans(event)
            if isinstance(event, Finished):
                meters.run_over(begun, event.trace)

        before = context.attach(context.get_current())
        make_current(spans.span)
        try:
            yield hear
        except Exception as error:
            if not spans.over:  # it never came so far as to say how it ended
                fail(spans.span, type(error).__name__)
            raise
        finally:
            context.detach(before)
            spans.span.end()

    return observe(watch)
