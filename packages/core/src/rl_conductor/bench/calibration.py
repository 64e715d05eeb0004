"""Capability cards from measurement: what each worker alone makes of a task, and how that gets into a pool file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

import tomlkit
from tomlkit.items import Item, Table

from rl_conductor.bench.rows import Row
from rl_conductor.bench.statistics import Estimate, estimate
from rl_conductor.errors import ConfigError
from rl_conductor.files import read_text, writing
from rl_conductor.pool import WorkerPool, read_pool_file
from rl_conductor.types import Card, Usage, Value, total

EVERYTHING = "all"
"""The domain of questions that name none."""


class Measured(Value):
    """What a worker alone made of a task."""

    accuracy: dict[str, Estimate]
    """By domain."""
    latency: float
    """Median seconds of a question."""
    usage: Usage
    """Of all questions."""
    runs: int
    failures: int
    """Runs without an answer; they count as wrong."""

    def card(self, card: Card) -> Card:
        """`card` with what was measured in it."""
        accuracy = {domain: round(share.value, 3) for domain, share in self.accuracy.items()}
        return card.model_copy(update={"accuracy": accuracy, "latency": round(self.latency, 2)})


def measured(rows: Sequence[Row]) -> Measured:
    """What the rows of one worker amount to."""
    questions: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        questions.setdefault(row.domain or EVERYTHING, {}).setdefault(row.key.sample, []).append(row.value)
    return Measured(
        accuracy={
            domain: estimate([fmean(each) for each in by_question.values()])
            for domain, by_question in questions.items()
        },
        latency=median(row.seconds for row in rows),
        usage=total(row.usage for row in rows),
        runs=len(rows),
        failures=sum(row.error is not None for row in rows),
    )


def with_cards(pool: WorkerPool, by_worker: Mapping[str, Measured]) -> WorkerPool:
    """`pool` with what was measured on its workers' cards."""
    return WorkerPool(replace(worker, card=by_worker[name].card(worker.card)) for name, worker in pool.items())


def write_cards(pool_file: Path, by_worker: Mapping[str, Measured], *, task: str, to: Path) -> None:
    """Write `to`: the pool file with what was measured in it, everything else as it was. It is whole or not there.

    Raises:
        ConfigError: the pool file has none of these workers any more, or `to` can't be written.
    """
    text = tomlkit.parse(read_text(pool_file))
    workers: Any = text["workers"]
    for name, one in by_worker.items():
        if name not in workers:
            raise ConfigError(f"{str(pool_file)!r} has no worker {name!r} any more; measure again")
        _note(workers[name], one, f"measured on {task}, {datetime.now(UTC):%Y-%m-%d}: {in_words(one)}")
    _replace(to, tomlkit.dumps(text))


def in_words(one: Measured) -> str:
    """Accuracy by domain with its standard error and number of questions."""
    return ", ".join(f"{domain} {share.in_words} (n = {share.n})" for domain, share in one.accuracy.items())


def _note(worker: Any, one: Measured, comment: str) -> None:
    card = one.card(Card(name=""))
    accuracy = tomlkit.inline_table()
    accuracy.update(card.accuracy)
    worker["accuracy"] = accuracy
    worker["latency"] = card.latency
    if isinstance(worker, Table):  # a worker that is written on one line has no room for it
        kept: Item = worker["accuracy"]
        kept.comment(comment)


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            beside.write_text(text, encoding="utf-8")
            read_pool_file(beside)
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
