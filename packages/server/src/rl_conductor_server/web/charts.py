"""Lays out spending over time as a stacked column chart. Pure geometry, in units of a stretched SVG.

Drawn here instead of by a charting library: the pages' Content-Security-Policy forbids the inline styles and scripts
that those libraries write into their SVG, and plain rectangles follow the page's own colours, light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rl_conductor.types import Usage, total
from rl_conductor_server.store import Spending

Measure = Literal["cost", "tokens"]

CHART_HEIGHT = 100.0
COLUMN_PITCH, BAR_WIDTH = 10.0, 7.0
MAX_NAMES = 7
"""More colours would be hard to tell apart; the other names are summed up as `OTHERS`."""
OTHERS = "all others"


@dataclass(frozen=True)
class Segment:
    """One name's part of one column."""

    rank: int
    x: float
    y: float
    height: float
    start: float
    """Start of the column's time span, in seconds since 1970."""
    amount: float


@dataclass(frozen=True)
class Series:
    """One name's total over the chart."""

    name: str
    rank: int
    usage: Usage
    share: float
    """Share of the chart's total, from 0 to 1."""


@dataclass(frozen=True)
class Chart:
    """A stacked column chart and the totals of its names."""

    width: float
    top: float
    """The amount at the upper edge."""
    segments: tuple[Segment, ...]
    series: tuple[Series, ...]
    """The largest first, stacked from the bottom up."""

    @classmethod
    def from_spending(
        cls, spending: Sequence[Spending], measure: Measure, *, start: float, columns: int, width: int
    ) -> Chart:
        """Charts `spending` in `columns` columns of `width` seconds each, from `start` on."""
        series = _series(spending, measure)
        ranks = {line.name: line.rank for line in series}
        amounts = [[0.0] * len(series) for _ in range(columns)]
        for entry in spending:
            column = amounts[int((entry.start - start) // width)]
            column[ranks.get(entry.name, len(series) - 1)] += _amount(entry.usage, measure)
        top = _round_up(max((sum(column) for column in amounts), default=0.0))
        segments = [
            segment
            for index, column in enumerate(amounts)
            for segment in _stack(column, index, top, start + index * width)
        ]
        return cls(columns * COLUMN_PITCH, top, tuple(segments), series)


def _amount(usage: Usage, measure: Measure) -> float:
    return float(usage.cost) if measure == "cost" else float(usage.total_tokens)


def _series(spending: Sequence[Spending], measure: Measure) -> tuple[Series, ...]:
    totals: dict[str, Usage] = {}
    for entry in spending:
        totals[entry.name] = totals.get(entry.name, Usage()) + entry.usage
    names = sorted(totals, key=lambda name: (-_amount(totals[name], measure), name))
    if len(names) > MAX_NAMES + 1:
        totals[OTHERS] = total(totals[name] for name in names[MAX_NAMES:])
        names = [*names[:MAX_NAMES], OTHERS]
    grand_total = sum(_amount(totals[name], measure) for name in names) or 1.0
    return tuple(
        Series(name, rank, totals[name], _amount(totals[name], measure) / grand_total)
        for rank, name in enumerate(names)
    )


def _stack(column: Sequence[float], index: int, top: float, start: float) -> list[Segment]:
    segments, y = [], CHART_HEIGHT
    x = index * COLUMN_PITCH + (COLUMN_PITCH - BAR_WIDTH) / 2
    for rank, amount in enumerate(column):
        if amount:
            height = CHART_HEIGHT * amount / top
            y -= height
            segments.append(Segment(rank, x, round(y, 3), round(height, 3), start, amount))
    return segments


def _round_up(amount: float) -> float:
    """Rounds up to 1, 2, 2.5 or 5 times a power of ten."""
    if amount <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(amount))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= amount * (1 - 1e-9))
