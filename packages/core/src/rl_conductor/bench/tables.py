"""What the rows amount to: a line for each system, and how each compares with those it has to beat. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean
from typing import Literal

import numpy as np

from rl_conductor.bench.rows import Row
from rl_conductor.bench.runner import Entrant, Section
from rl_conductor.bench.statistics import Difference, Estimate, corrected, difference, estimate, paired, ratio
from rl_conductor.types import Usage, Value, total

Verdict = Literal["gain", "loss", "not shown", "validity only", "peeks"]
"""`not shown`: chance alone may do as much. `validity only`: more plans could be run, but where both had one that
could, no gain is shown. `peeks`: it knows the answers, so nothing is claimed."""


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
    steps_by_depth: dict[int, float]
    """Mean a question."""

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
    peeks: bool
    """Whether one of them knows the answers."""
    difference: Difference
    given_valid: Difference | None
    """On the questions for which both had a plan that could be run as first written; `None` where there is none.
    Its p is not corrected: it can only take a gain away."""
    valid: Difference | None
    """Of the shares of such plans; `None` where one of them writes none."""

    @property
    def verdict(self) -> Verdict:
        """What may be said."""
        if self.peeks:
            return "peeks"
        if not self.difference.sure:
            return "not shown"
        if self.difference.value < 0:
            return "loss"
        if _gained(self.given_valid):
            return "gain"
        return "validity only" if _gained(self.valid) else "not shown"


def _gained(gap: Difference | None) -> bool:
    return gap is not None and gap.sure and gap.value > 0


def line(entrant: Entrant) -> Line:
    """The columns of a system."""
    rows = entrant.rows
    planned = [row for row in rows if row.valid is not None]
    valid = [row for row in planned if row.valid]
    seconds = [row.seconds for row in rows]
    by_depth = _by_depth(rows)
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
        by_depth={depth: estimate(means(each)) for depth, each in by_depth.items()},
        steps_by_depth={depth: fmean(row.steps for row in each) for depth, each in by_depth.items()},
    )


def _by_depth(rows: Sequence[Row]) -> dict[int, list[Row]]:
    depths = sorted({row.depth for row in rows if row.depth is not None})
    return {depth: [row for row in rows if row.depth == depth] for depth in depths}


def means(rows: Sequence[Row]) -> list[float]:
    """The mean of each question's repetitions, in the order of the questions."""
    return [fmean(row.value for row in each) for each in _by_question(rows)]


def _by_question(rows: Sequence[Row]) -> list[list[Row]]:
    return [list(each) for _, each in groupby(rows, key=lambda row: row.key.sample)]


def comparisons(section: Section, against: Sequence[str]) -> list[Comparison]:
    """Each system against each of those named, as far as they ran, each pair once; p is corrected for how many."""
    known = {entrant.system.name: entrant for entrant in section.entrants}
    found = [
        compared(entrant, known[other])
        for number, other in enumerate(against)
        if other in known
        for entrant in section.entrants
        if entrant.system.name not in against[: number + 1]
    ]
    gaps = corrected([one.difference for one in found])
    return [one.model_copy(update={"difference": gap}) for one, gap in zip(found, gaps, strict=True)]


def compared(ours: Entrant, theirs: Entrant) -> Comparison:
    """One system against another, question by question."""
    return Comparison(
        system=ours.system.name,
        against=theirs.system.name,
        peeks=ours.system.peeks or theirs.system.peeks,
        difference=difference(means(ours.rows), means(theirs.rows)),
        given_valid=paired(_given_valid(ours), _given_valid(theirs)),
        valid=paired(_valid(ours), _valid(theirs)),
    )


def _given_valid(entrant: Entrant) -> list[float | None]:
    """A system that writes no plans has none that is invalid."""
    valid = [[row.value for row in each if row.valid is not False] for each in _by_question(entrant.rows)]
    return [fmean(values) if values else None for values in valid]


def _valid(entrant: Entrant) -> list[float | None]:
    plans = [[row.valid for row in each if row.valid is not None] for each in _by_question(entrant.rows)]
    return [fmean(valid) if valid else None for valid in plans]


class Way(Value):
    """The share of the way from the best single worker to the oracle that a system went, and its 95 % interval."""

    system: str
    value: float
    low: float
    high: float


def ways(section: Section, compared: Sequence[Comparison], *, single: str, oracle: str) -> list[Way]:
    """Of the systems that were found to gain on `single`, if the oracle ran too and was better."""
    known = {entrant.system.name: means(entrant.rows) for entrant in section.entrants}
    gained = [one.system for one in compared if one.against == single and one.verdict == "gain"]
    if oracle not in known or not gained or fmean(known[oracle]) <= fmean(known[single]):
        return []
    return [_way(name, known[name], known[single], known[oracle]) for name in gained]


def _way(system: str, ours: Sequence[float], single: Sequence[float], oracle: Sequence[float]) -> Way:
    went, whole = ([one - start for one, start in zip(each, single, strict=True)] for each in (ours, oracle))
    value, low, high = ratio(went, whole)
    return Way(system=system, value=value, low=low, high=high)


def chosen(entrant: Entrant) -> dict[str, dict[str, float]]:
    """Who did what share of a system's steps, by the domain of the question."""
    shares: dict[str, dict[str, float]] = {}
    for domain in sorted({row.domain for row in entrant.rows}):
        done = [worker for row in entrant.rows if row.domain == domain for worker in row.workers]
        shares[domain] = {worker: done.count(worker) / len(done) for worker in dict.fromkeys(done)}
    return shares
