"""What the rows amount to: a line for each system, and how each compares with those it has to beat. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean
from typing import Literal

import numpy as np

from rl_conductor.bench.rows import Row
from rl_conductor.bench.runner import Entrant, Section
from rl_conductor.bench.statistics import (
    Difference,
    Estimate,
    difference,
    estimate,
    valid_difference,
)
from rl_conductor.types import Usage, Value, total

Verdict = Literal["gain", "loss", "not shown", "validity only", "peeks"]
"""`not shown`: the interval covers zero. `validity only`: more plans could be run, but those that could were no better.
`peeks`: it knows the answers, so nothing is claimed."""


class Line(Value):
    """A system's columns."""

    system: str
    about: str
    peeks: bool
    accuracy: Estimate
    valid: float | None
    """Share of plans that could be run as first written; `None` for systems that write none."""
    given_valid: Estimate | None
    """Accuracy of those alone."""
    steps: float
    """Mean a question."""
    usage: Usage
    """Of all questions and repetitions."""
    runs: int
    """Questions times repetitions."""
    p50: float
    p95: float
    """Seconds."""
    failures: int
    """Runs without an answer."""
    by_depth: dict[int, Estimate]

    @property
    def tokens(self) -> float:
        """Mean a question."""
        return self.usage.total_tokens / self.runs

    @property
    def dollars(self) -> float:
        """Mean a question; a lower bound where `usage` has unpriced calls."""
        return float(self.usage.cost) / self.runs


class Comparison(Value):
    """A system against one that it has to beat."""

    system: str
    against: str
    difference: Difference
    given_valid: Difference | None
    verdict: Verdict


def line(entrant: Entrant) -> Line:
    """The columns of a system."""
    rows = entrant.rows
    planned = [row for row in rows if row.valid is not None]
    valid = [row for row in planned if row.valid]
    seconds = [row.seconds for row in rows]
    return Line(
        system=entrant.system.name,
        about=entrant.system.about,
        peeks=entrant.system.peeks,
        accuracy=estimate(means(rows)),
        valid=len(valid) / len(planned) if planned else None,
        given_valid=estimate(means(valid)) if valid else None,
        steps=fmean(row.steps for row in rows),
        usage=total(row.usage for row in rows),
        runs=len(rows),
        p50=float(np.quantile(seconds, 0.5)),
        p95=float(np.quantile(seconds, 0.95)),
        failures=sum(row.error is not None for row in rows),
        by_depth={
            depth: estimate(means([row for row in rows if row.depth == depth]))
            for depth in sorted({row.depth for row in rows if row.depth is not None})
        },
    )


def means(rows: Sequence[Row]) -> list[float]:
    """The mean of each question's repetitions, in the order of the questions."""
    return [fmean(row.value for row in each) for each in _by_question(rows)]


def _by_question(rows: Sequence[Row]) -> list[list[Row]]:
    return [list(each) for _, each in groupby(rows, key=lambda row: row.key.sample)]


def comparisons(section: Section, against: Sequence[str]) -> list[Comparison]:
    """Each system against each of those named, as far as they ran."""
    known = {entrant.system.name: entrant for entrant in section.entrants}
    return [
        compared(entrant, known[other])
        for other in against
        if other in known
        for entrant in section.entrants
        if entrant.system.name != other
    ]


def compared(ours: Entrant, theirs: Entrant) -> Comparison:
    """One system against another, question by question."""
    gap = difference(means(ours.rows), means(theirs.rows))
    given_valid = valid_difference(_given_valid(ours), _given_valid(theirs))
    return Comparison(
        system=ours.system.name,
        against=theirs.system.name,
        difference=gap,
        given_valid=given_valid,
        verdict="peeks" if ours.system.peeks or theirs.system.peeks else verdict(gap, given_valid),
    )


def verdict(gap: Difference, given_valid: Difference | None) -> Verdict:
    """What may be said of a difference: nothing where its interval covers zero or only the form of plans got better."""
    if not gap.sure:
        return "not shown"
    if gap.value < 0:
        return "loss"
    return "gain" if given_valid is not None and given_valid.low > 0 else "validity only"


def _given_valid(entrant: Entrant) -> list[float | None]:
    """A system that writes no plans has none that is invalid."""
    valid = [[row.value for row in each if row.valid is not False] for each in _by_question(entrant.rows)]
    return [fmean(values) if values else None for values in valid]


def closed(section: Section, system: str, *, single: str, oracle: str) -> float | None:
    """The share of the way from the best single worker to the oracle that a system went; `None` without a way."""
    known = {entrant.system.name: fmean(means(entrant.rows)) for entrant in section.entrants}
    if not {system, single, oracle} <= known.keys() or known[oracle] <= known[single]:
        return None
    return (known[system] - known[single]) / (known[oracle] - known[single])


def chosen(entrant: Entrant) -> dict[str, dict[str, float]]:
    """Who did what share of a system's steps, by the domain of the question."""
    shares: dict[str, dict[str, float]] = {}
    for domain in sorted({row.domain for row in entrant.rows}):
        done = [worker for row in entrant.rows if row.domain == domain for worker in row.workers]
        shares[domain] = {worker: done.count(worker) / len(done) for worker in dict.fromkeys(done)}
    return shares
