"""Prometheus metrics. All labels are names from the settings, so their number is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rl_conductor.trace.trace import Trace

DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The metrics of one server; each has its own registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "conductor_requests", "Requests by path and status.", ["path", "status"], registry=registry
        )
        self._runs = Counter("conductor_runs", "Runs that have ended.", ["model", "outcome"], registry=registry)
        self._running = Gauge("conductor_running", "Runs in progress.", ["model"], registry=registry)
        self._seconds = Histogram(
            "conductor_run_seconds",
            "Duration of runs in seconds.",
            ["model"],
            registry=registry,
            buckets=DURATION_BUCKETS,
        )
        self._dollars = Counter("conductor_usd", "US dollars spent.", ["worker"], registry=registry)
        self._tokens = Counter("conductor_tokens", "Tokens used.", ["worker", "direction"], registry=registry)
        self._calls = Counter("conductor_calls", "Calls to models.", ["worker", "outcome"], registry=registry)
        self._lost_writes = Counter(
            "conductor_store_lost_writes", "Writes that the database rejected for good.", registry=registry
        )
        self._expired = Counter("conductor_runs_expired", "Runs of dead servers, ended by this one.", registry=registry)
        self._canary = Gauge(
            "conductor_canary_percent",
            "Percentage of an experiment's requests that the conductor answers.",
            ["route"],
            registry=registry,
        )
        self._rollbacks = Counter(
            "conductor_canary_rollbacks", "Canaries that a guard rolled back.", ["route"], registry=registry
        )
        self._comparisons = Counter(
            "conductor_shadows",
            "Answers sampled for comparison, by outcome.",
            ["route", "outcome"],
            registry=registry,
        )

    def render(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    def count_request(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    @contextmanager
    def track_running(self, model: str) -> Iterator[None]:
        """Count a run as in progress while the block runs."""
        with self._running.labels(model).track_inprogress():
            yield

    def count_run(self, model: str, trace: Trace) -> None:
        """Count a run that has ended, and its calls, tokens and cost."""
        self._runs.labels(model, trace.answer.source if trace.answer else "none").inc()
        self._seconds.labels(model).observe(trace.seconds)
        for call in trace.calls():
            if not call.usage.calls and call.outcome != "refused":  # a replay reuses the call of an earlier run
                continue
            worker = call.worker or "planner"
            self._calls.labels(worker, call.outcome).inc()
            self._dollars.labels(worker).inc(float(call.usage.cost))
            self._tokens.labels(worker, "input").inc(call.usage.input_tokens)
            self._tokens.labels(worker, "output").inc(call.usage.output_tokens)

    def count_lost_write(self) -> None:
        self._lost_writes.inc()

    def count_expired_runs(self, count: int) -> None:
        self._expired.inc(count)

    def set_canary(self, experiment: str, percent: float) -> None:
        self._canary.labels(experiment).set(percent)

    def count_rollback(self, experiment: str) -> None:
        self._rollbacks.labels(experiment).inc()

    def count_comparison(self, experiment: str, outcome: str) -> None:
        """Count a sampled answer; the outcome is the verdict or the reason for which there is none."""
        self._comparisons.labels(experiment, outcome).inc()
