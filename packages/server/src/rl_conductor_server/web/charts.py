"""Spending over time as stacked columns. Pure geometry, in the units of an SVG that is stretched to its place.

The charts are drawn here, not by a library: what a page may load forbids the style sheets and scripts that those write
into their SVG, and a handful of rectangles follows the page's own colours, light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rl_conductor.types import Usage, total
from rl_conductor_server.store import Spending

Measure = Literal["cost", "tokens"]

HEIGHT = 100.0
COLUMN, BAR = 10.0, 7.0
"""From one column to the next, and how much of that is filled."""
MOST_NAMES = 7
"""More would have colours that nobody tells apart; the rest is summed up."""
OTHERS = "all others"


@dataclass(frozen=True)
class Part:
    """A name's share of one column."""

    rank: int
    x: float
    y: float
    height: float
    start: float
    amount: float


@dataclass(frozen=True)
class Share:
    """A name's share of the whole."""

    name: str
    rank: int
    usage: Usage
    of_all: float
    """0 to 1."""


@dataclass(frozen=True)
class Chart:
    """Columns of time, and what they amount to."""

    width: float
    top: float
    """The amount at the upper edge."""
    parts: tuple[Part, ...]
    shares: tuple[Share, ...]
    """The largest first, as they lie from the bottom up."""

    @classmethod
    def of(cls, spent: Sequence[Spending], measure: Measure, *, start: float, spans: int, width: int) -> Chart:
        """What was spent in each of `spans` spans of `width` seconds from `start` on."""
        shares = _shares(spent, measure)
        ranks = {share.name: share.rank for share in shares}
        columns = [[0.0] * len(shares) for _ in range(spans)]
        for one in spent:
            column = columns[int((one.start - start) // width)]
            column[ranks.get(one.name, len(shares) - 1)] += _amount(one.usage, measure)
        top = _round_up(max((sum(column) for column in columns), default=0.0))
        parts = [
            part for index, column in enumerate(columns) for part in _stacked(column, index, top, start + index * width)
        ]
        return cls(spans * COLUMN, top, tuple(parts), shares)


def _amount(usage: Usage, measure: Measure) -> float:
    return float(usage.cost) if measure == "cost" else float(usage.total_tokens)


def _shares(spent: Sequence[Spending], measure: Measure) -> tuple[Share, ...]:
    used: dict[str, Usage] = {}
    for one in spent:
        used[one.name] = used.get(one.name, Usage()) + one.usage
    names = sorted(used, key=lambda name: (-_amount(used[name], measure), name))
    if len(names) > MOST_NAMES + 1:
        used[OTHERS] = total(used[name] for name in names[MOST_NAMES:])
        names = [*names[:MOST_NAMES], OTHERS]
    whole = sum(_amount(used[name], measure) for name in names) or 1.0
    return tuple(Share(name, rank, used[name], _amount(used[name], measure) / whole) for rank, name in enumerate(names))


def _stacked(column: Sequence[float], index: int, top: float, start: float) -> list[Part]:
    parts, y = [], HEIGHT
    for rank, amount in enumerate(column):
        if amount:
            height = HEIGHT * amount / top
            y -= height
            parts.append(Part(rank, index * COLUMN + (COLUMN - BAR) / 2, round(y, 3), round(height, 3), start, amount))
    return parts


def _round_up(amount: float) -> float:
    """The next of 1, 2, 2.5 or 5 times a power of ten."""
    if amount <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(amount))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= amount * (1 - 1e-9))
