"""Runs whose spans and metrics stay in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from rl_conductor.telemetry import instrument


@dataclass
class Recorded:
    """The spans and metrics of the runs so far."""

    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader
    tracer: Tracer
    """Of the application around the runs."""

    def spans(self) -> list[ReadableSpan]:
        """In the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def span(self, name: str) -> ReadableSpan:
        """The only one of this name."""
        (found,) = [span for span in self.spans() if span.name == name]
        return found

    def said(self, name: str) -> Mapping[str, Any]:
        """The attributes of the only span of this name."""
        return self.span(name).attributes or {}

    def tree(self) -> list[str]:
        """The names of all spans, each indented by its depth, below their parents."""
        spans = self.spans()
        known = {span.context.span_id for span in spans if span.context}

        def below(parent: int | None, depth: int) -> Iterator[str]:
            for span in spans:
                own = span.parent.span_id if span.parent and span.parent.span_id in known else None
                if own == parent:
                    assert span.context is not None
                    yield "  " * depth + span.name
                    yield from below(span.context.span_id, depth + 1)

        return list(below(None, 0))

    def points(self, metric: str) -> list[tuple[dict[str, Any], Any]]:
        """The attributes and the sum of each point of a metric."""
        data = self.reader.get_metrics_data()
        found = [
            (dict(point.attributes or {}), getattr(point, "sum", getattr(point, "value", None)))
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for one in scope.metrics
            if one.name == metric
            for point in one.data.data_points
        ]
        return sorted(found, key=str)


@pytest.fixture
def providers() -> tuple[TracerProvider, MeterProvider, InMemorySpanExporter, InMemoryMetricReader]:
    """An SDK that keeps everything in memory."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    return tracers, MeterProvider([reader]), exporter, reader


@pytest.fixture
def recorded(
    providers: tuple[TracerProvider, MeterProvider, InMemorySpanExporter, InMemoryMetricReader],
) -> Iterator[Recorded]:
    """Records the spans and metrics of the runs of a test."""
    tracers, meters, exporter, reader = providers
    stop = instrument(tracer_provider=tracers, meter_provider=meters)
    yield Recorded(exporter, reader, tracers.get_tracer("application"))
    stop()
