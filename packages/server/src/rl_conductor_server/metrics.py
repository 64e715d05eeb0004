"""What Prometheus is told. Labels are names of the settings only, so their number is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rl_conductor.trace.trace import Trace

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self.registry = made = CollectorRegistry()
        self._requests = Counter(
            "conductor_requests", "Requests by path and status.", ["path", "status"], registry=made
        )
        self._runs = Counter("conductor_runs", "Runs that are over.", ["model", "outcome"], registry=made)
        self._running = Gauge("conductor_running", "Runs under way.", ["model"], registry=made)
        self._seconds = Histogram(
            "conductor_run_seconds", "Seconds a run took.", ["model"], registry=made, buckets=SECONDS
        )
        self._dollars = Counter("conductor_usd", "US dollars spent.", ["worker"], registry=made)
        self._tokens = Counter("conductor_tokens", "Tokens used.", ["worker", "direction"], registry=made)
        self._calls = Counter("conductor_calls", "Calls to models.", ["worker", "outcome"], registry=made)
        self._lost_writes = Counter(
            "conductor_store_lost_writes", "Writes that the store refused for good.", registry=made
        )
        self._expired = Counter(
            "conductor_runs_expired", "Runs of servers that are gone, ended by this one.", registry=made
        )
        self._canary = Gauge(
            "conductor_canary_percent", "Share of a route's answers that the conductor gives.", ["route"], registry=made
        )
        self._rolled_back = Counter(
            "conductor_canary_rollbacks", "Canaries that a guard has ended.", ["route"], registry=made
        )
        self._compared = Counter(
            "conductor_shadows",
            "Answers drawn to be compared, and what came of it.",
            ["route", "outcome"],
            registry=made,
        )

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)

    def answered(self, path: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()

    @contextmanager
    def running(self, model: str) -> Iterator[None]:
        """Count a run while the block runs."""
        gauge = self._running.labels(model)
        with gauge.track_inprogress():
            yield

    def run_over(self, model: str, trace: Trace) -> None:
        """Count a run and everything that it used."""
        self._runs.labels(model, trace.answer.source if trace.answer else "none").inc()
        self._seconds.labels(model).observe(trace.seconds)
        for call in trace.calls():
            if not call.usage.calls and call.outcome != "refused":  # a replay keeps it from the run before
                continue
            worker = call.worker or "planner"
            self._calls.labels(worker, call.outcome).inc()
            self._dollars.labels(worker).inc(float(call.usage.cost))
            self._tokens.labels(worker, "input").inc(call.usage.input_tokens)
            self._tokens.labels(worker, "output").inc(call.usage.output_tokens)

    def write_lost(self) -> None:
        """Count a write that the store refused for good."""
        self._lost_writes.inc()

    def expired(self, count: int) -> None:
        """Count runs that another server left behind."""
        self._expired.inc(count)

    def canary(self, route: str, percent: float) -> None:
        """Note how far a canary is."""
        self._canary.labels(route).set(percent)

    def rolled_back(self, route: str) -> None:
        """Count the end of a canary."""
        self._rolled_back.labels(route).inc()

    def compared(self, route: str, outcome: str) -> None:
        """Count a pair, or why there is none."""
        self._compared.labels(route, outcome).inc()
