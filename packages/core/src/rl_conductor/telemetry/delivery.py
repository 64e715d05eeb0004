"""Sets up an OpenTelemetry SDK that counts undelivered data and shuts down quickly if the collector is unreachable."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from rl_conductor._internal.formatting import counted

SHUTDOWN_TIMEOUT = 2.0
"""Seconds that the end of a program waits until everything is sent."""


class Delivery:
    """The tracer and meter providers of this program."""

    def __init__(self, spans: Sequence[SpanExporter], metrics: Sequence[MetricExporter], resource: Resource) -> None:
        self._spans = [_Spans(exporter) for exporter in spans]
        self._metrics = [_Metrics(exporter) for exporter in metrics]
        self.tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        for processor in self._spans:
            self.tracers.add_span_processor(processor)
        readers = [PeriodicExportingMetricReader(exporter) for exporter in self._metrics]
        self.meters = MeterProvider(readers, resource=resource, shutdown_on_exit=False)

    def shut_down(self) -> str:
        """Sends the remaining data, and returns a warning about undelivered data, or an empty string."""
        _run_within(SHUTDOWN_TIMEOUT, self.tracers.shutdown, self.meters.shutdown)
        spans = max((processor.unsent for processor in self._spans), default=0)
        lost = [counted(spans, "span")] if spans else []
        lost += ["the metrics"] if any(exporter.unsent for exporter in self._metrics) else []
        return f"telemetry: {' and '.join(lost)} could not be sent within {SHUTDOWN_TIMEOUT:g} s" if lost else ""


def _run_within(seconds: float, *functions: Callable[[], object]) -> None:
    """Runs all functions in parallel, and abandons those that take longer: the SDK's timeouts don't stop a call."""
    deadline = time.monotonic() + seconds
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


class _Spans(BatchSpanProcessor):
    """Batch processor that counts the spans without confirmed delivery."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.unsent = 0
        super().__init__(_SpanExporter(exporter, self._delivered))

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self.unsent += 1
        super().on_end(span)

    def _delivered(self, spans: int) -> None:
        self.unsent -= spans


class _SpanExporter(SpanExporter):
    def __init__(self, exporter: SpanExporter, delivered: Callable[[int], None]) -> None:
        self._exporter = exporter
        self._delivered = delivered

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._delivered(len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Metrics(MetricExporter):
    """Remembers whether the newest metrics, which include all earlier ones, were delivered."""

    def __init__(self, exporter: MetricExporter) -> None:
        # As the SDK's own reader does: there is no public attribute.
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)  # noqa: SLF001
        self._exporter = exporter
        self.unsent = False

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **options: object
    ) -> MetricExportResult:
        self.unsent = True
        result = self._exporter.export(metrics_data, timeout_millis, **options)
        self.unsent = result is not MetricExportResult.SUCCESS
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **options: object) -> None:
        self._exporter.shutdown(timeout_millis, **options)
