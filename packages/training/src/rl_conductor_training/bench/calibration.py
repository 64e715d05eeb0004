"""Measures the accuracy and latency of single workers and writes them onto the cards of a pool file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import tomlkit
from tomlkit.items import Item, Table

from rl_conductor._internal.io import read_text, writing_errors
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.pool_file import read_pool_file
from rl_conductor.types import Card, Text, Usage, Value, total
from rl_conductor_training.bench.accuracy import estimate_accuracy
from rl_conductor_training.bench.results import SampleResult
from rl_conductor_training.statistics import Estimate

ALL_DOMAINS = "all"
"""Domain of questions without one."""


class WorkerMeasurement(Value):
    """Accuracy, latency and cost of a single worker on a task."""

    accuracy: dict[str, Estimate]
    """Accuracy by domain."""
    latency: float
    """Median seconds per question."""
    usage: Usage
    """Total usage of all questions."""
    runs: int
    failures: int
    """Runs without an answer; they count as wrong."""
    error: Text | None = None
    """Why the first of them failed."""

    @property
    def has_answers(self) -> bool:
        """Whether a run has an answer; if not, the worker was down and nothing was measured."""
        return self.failures < self.runs

    def update_card(self, card: Card) -> Card:
        """Returns a copy of `card` with the accuracy and latency, or `card` itself if nothing was measured."""
        if not self.has_answers:
            return card
        rounded = {domain: round(accuracy.value, 3) for domain, accuracy in self.accuracy.items()}
        return card.model_copy(update={"accuracy": rounded, "latency": round(self.latency, 2)})


def measure_worker(rows: Sequence[SampleResult]) -> WorkerMeasurement:
    """Summarises the results of one worker."""
    by_domain: dict[str, list[SampleResult]] = {}
    for row in sorted(rows, key=lambda row: row.key.sample):
        by_domain.setdefault(row.domain or ALL_DOMAINS, []).append(row)
    return WorkerMeasurement(
        accuracy={domain: estimate_accuracy(results) for domain, results in by_domain.items()},
        latency=median(row.seconds for row in rows),
        usage=total(row.usage for row in rows),
        runs=len(rows),
        failures=sum(row.error is not None for row in rows),
        error=next((row.error for row in rows if row.error is not None), None),
    )


def describe_failures(measurements: Mapping[str, WorkerMeasurement]) -> Iterator[str]:
    """Describes the workers with failed runs, and the consequence for their cards."""
    for name, measurement in measurements.items():
        failures, runs, error = measurement.failures, measurement.runs, measurement.error
        if failures == runs:
            yield f"{name} failed on all of {runs} questions, so its card stays as it is: {error}"
        elif failures:
            yield f"{name} failed on {failures} of {runs} questions, which count as wrong, such as: {error}"


def apply_measurements(pool: WorkerPool, measurements: Mapping[str, WorkerMeasurement]) -> WorkerPool:
    """Returns a copy of `pool` with the measurements on its workers' cards."""
    return WorkerPool(
        replace(worker, card=measurements[name].update_card(worker.card)) for name, worker in pool.items()
    )


def write_cards(pool_file: Path, measurements: Mapping[str, WorkerMeasurement], *, task: str, to: Path) -> None:
    """Writes a pool file with the measurements to `to`, atomically and with everything else unchanged.

    The card of a worker that never answered is not changed.

    Raises:
        ConfigError: a worker is no longer in the pool file, or `to` can't be written.
    """
    text = tomlkit.parse(read_text(pool_file))
    workers: Any = text["workers"]
    for name, measurement in measurements.items():
        if not measurement.has_answers:
            continue
        if name not in workers:
            raise ConfigError(f"{str(pool_file)!r} has no worker {name!r} any more; measure again")
        comment = f"measured on {task}, {datetime.now(UTC):%Y-%m-%d}: {format_accuracy(measurement)}"
        if isinstance(workers[name], str):  # the name of a model is a whole entry
            model, workers[name] = str(workers[name]), tomlkit.inline_table()
            workers[name]["model"] = model
        _update_entry(workers[name], measurement, comment)
    _write_validated(to, tomlkit.dumps(text))


def format_accuracy(measurement: WorkerMeasurement) -> str:
    """Formats the accuracy by domain with its standard error and number of questions."""
    return ", ".join(
        f"{domain} {accuracy.formatted} (n = {accuracy.n})" for domain, accuracy in measurement.accuracy.items()
    )


def _update_entry(worker: Any, measurement: WorkerMeasurement, comment: str) -> None:
    card = measurement.update_card(Card(name=""))
    accuracy = tomlkit.inline_table()
    accuracy.update(card.accuracy)
    worker["accuracy"] = accuracy
    worker["latency"] = card.latency
    if isinstance(worker, Table):  # an inline table has no room for a comment
        accuracy_item: Item = worker["accuracy"]
        accuracy_item.comment(comment)


def _write_validated(path: Path, text: str) -> None:
    path = path.resolve()  # a link stays a link
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing_errors(path):
            temporary.write_text(text, encoding="utf-8")
            if path.exists():
                shutil.copymode(path, temporary)
            read_pool_file(temporary)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
