"""Prometheus metrics. All labels are names from the settings, so their number is bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from rl_conductor.calls.budget import Amount
from rl_conductor.trace.trace import Trace

MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable with the folder in which worker processes share their metrics."""
DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The metrics of one server; each has its own registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter, seconds = partial(Counter, registry=registry), partial(_seconds, registry=registry)
        total = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        self._requests = counter("conductor_requests", "Requests by path and status.", ["path", "status"])
        self._runs = counter("conductor_runs", "Runs that have ended.", ["model", "outcome"])
        self._request_seconds = seconds(
            "conductor_request_seconds", "Seconds of requests, until the last byte was sent.", ["path"]
        )
        self._running = total("conductor_running", "Runs in progress.", ["model"])
        self._queue_depth = total("conductor_queue_depth", "Runs that wait until others have ended.")
        self._first_token = seconds(
            "conductor_first_token_seconds",
            "Seconds until the first text of a streamed answer, from the start of its run.",
            ["model"],
        )
        self._reserved_usd = total("conductor_reserved_usd", "US dollars reserved for calls in flight.")
        self._reserved_calls = total("conductor_reserved_calls", "Calls in flight for which an amount is reserved.")
        self._store_lag = Gauge(
            "conductor_store_lag_seconds",
            "Age of the oldest write that is not committed.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._seconds = seconds("conductor_run_seconds", "Duration of runs in seconds.", ["model"])
        self._dollars = counter("conductor_usd", "US dollars spent.", ["worker"])
        self._tokens = counter("conductor_tokens", "Tokens used.", ["worker", "direction"])
        self._calls = counter("conductor_calls", "Calls to models.", ["worker", "outcome"])
        self._lost_writes = counter("conductor_store_lost_writes", "Writes that the database rejected for good.")
        self._fallbacks = counter("conductor_fallbacks", "Runs of the fallback plan.", ["model"])
        self._expired = counter("conductor_runs_expired", "Runs of dead servers, ended by this one.")
        self._canary = Gauge(
            "conductor_canary_percent",
            "Percentage of an experiment's requests that the conductor answers.",
            ["experiment"],
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self._rollbacks = counter("conductor_canary_rollbacks", "Canaries that a guard rolled back.", ["experiment"])
        self._comparisons = counter("conductor_shadows", "Answers sampled for comparison.", ["experiment", "outcome"])
        self._cache_hits = counter("conductor_cache_hits", "Answers from the response cache.", ["model"])
        self._cache_saved = counter("conductor_cache_saved_usd", "US dollars that these had cost.", ["model"])
        self._batch_items = counter("conductor_batch_items", "Requests of batches that have ended.", ["outcome"])
        self._queued_items = Gauge(
            "conductor_batch_items_queued",
            "Requests of all batches that wait for a process; the signal to scale batch workers on.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )

    def render(self) -> bytes:
        """Returns all metrics in the Prometheus text format, those of all worker processes of this server together."""
        if MULTIPROCESS_FOLDER not in os.environ:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._request_seconds.labels(path).observe(seconds)

    def set_queue_depth(self, waiting: int) -> None:
        self._queue_depth.set(waiting)

    def observe_first_token(self, model: str, seconds: float) -> None:
        self._first_token.labels(model).observe(seconds)

    def set_reserved(self, amount: Amount) -> None:
        """Sets the amounts that are reserved for calls in flight."""
        self._reserved_usd.set(float(amount.usd))
        self._reserved_calls.set(amount.calls)

    def set_store_lag(self, seconds: float) -> None:
        self._store_lag.set(seconds)

    @contextmanager
    def track_running(self, model: str) -> Iterator[None]:
        """Counts a run as in progress while the block runs."""
        with self._running.labels(model).track_inprogress():
            yield

    def count_run(self, model: str, trace: Trace) -> None:
        """Counts a run that has ended, and its calls, tokens and cost."""
        self._runs.labels(model, trace.answer.source if trace.answer else "none").inc()
        self._seconds.labels(model).observe(trace.seconds)
        if trace.used_fallback:
            self._fallbacks.labels(model).inc()
        for call in trace.calls:
            if not call.usage.calls and call.outcome != "refused":  # a replay reuses the call of an earlier run
                continue
            worker = call.worker or "planner"
            self._calls.labels(worker, call.outcome).inc()
            self._dollars.labels(worker).inc(float(call.usage.cost))
            self._tokens.labels(worker, "input").inc(call.usage.input_tokens)
            self._tokens.labels(worker, "output").inc(call.usage.output_tokens)

    def count_cache_hit(self, model: str, saved: Decimal) -> None:
        """Counts an answer from the response cache, and its former cost."""
        self._cache_hits.labels(model).inc()
        self._cache_saved.labels(model).inc(float(saved))

    def count_batch_item(self, outcome: str) -> None:
        self._batch_items.labels(outcome).inc()

    def set_queued_items(self, count: int) -> None:
        self._queued_items.set(count)

    def count_lost_write(self) -> None:
        self._lost_writes.inc()

    def count_expired_runs(self, count: int) -> None:
        self._expired.inc(count)

    def set_canary(self, experiment: str, percent: float) -> None:
        self._canary.labels(experiment).set(percent)

    def count_rollback(self, experiment: str) -> None:
        self._rollbacks.labels(experiment).inc()

    def count_comparison(self, experiment: str, outcome: str) -> None:
        """Counts a sampled answer; the outcome is the verdict or the reason for which there is none."""
        self._comparisons.labels(experiment, outcome).inc()


def _seconds(name: str, documentation: str, labels: Sequence[str], *, registry: CollectorRegistry) -> Histogram:
    return Histogram(name, documentation, labels, registry=registry, buckets=DURATION_BUCKETS)
