"""The end of a program: what is left is sent, and who does not take it is not waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from core.runs import SOON
from rl_conductor.telemetry.delivery import SHUTDOWN_TIMEOUT, Delivery


class Spans(SpanExporter):
    """Takes spans, or refuses them, once it may."""

    def __init__(self, result: SpanExportResult, gate: threading.Event) -> None:
        self.result = result
        self.gate = gate

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.gate.wait()
        return self.result


class Metrics(ConsoleMetricExporter):
    """Takes metrics, or refuses them, once it may."""

    def __init__(self, result: MetricExportResult, gate: threading.Event) -> None:
        super().__init__()
        self.result = result
        self.gate = gate

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        self.gate.wait()
        return self.result


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Open from the beginning; whoever waits at the end may pass."""
    made = threading.Event()
    made.set()
    yield made
    made.set()


def delivered(gate: threading.Event, *, taken: bool) -> str:
    """Returns the message at the end, after three spans and a number."""
    spans = Spans(SpanExportResult.SUCCESS if taken else SpanExportResult.FAILURE, gate)
    metrics = Metrics(MetricExportResult.SUCCESS if taken else MetricExportResult.FAILURE, gate)
    delivery = Delivery([spans], [metrics], Resource.create())
    for name in "abc":
        delivery.tracers.get_tracer("test").start_span(name).end()
    delivery.meters.get_meter("test").create_counter("seen").add(1)
    return delivery.shut_down()


def test_when_all_arrives_nothing_is_said(gate: threading.Event) -> None:
    assert delivered(gate, taken=True) == ""


def test_without_exporters_nothing_is_missed() -> None:
    assert Delivery([], [], Resource.create()).shut_down() == ""


def test_what_is_refused_is_counted(gate: threading.Event) -> None:
    assert delivered(gate, taken=False) == "telemetry: 3 spans and the metrics could not be sent within 2 s"


def test_who_takes_nothing_is_waited_for_a_short_while(gate: threading.Event) -> None:
    gate.clear()
    began = time.monotonic()
    assert delivered(gate, taken=True) == "telemetry: 3 spans and the metrics could not be sent within 2 s"
    assert SHUTDOWN_TIMEOUT <= time.monotonic() - began < SHUTDOWN_TIMEOUT + SOON
