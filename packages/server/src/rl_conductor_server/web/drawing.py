"""A workflow as boxes and lines: steps that can run at the same time stand side by side. Pure geometry.

There is nothing to search for, as a plan's layers are known. A line to the next layer is direct; one that passes a
layer takes a lane of its source's own, so that no line runs behind a box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rl_conductor.workflow.workflow import Workflow

Point = tuple[float, float]
Layers = Sequence[Sequence[int]]

CORNER = 10.0
"""Radius of a line's turns."""
LANE = 14.0
"""Between two lanes."""


@dataclass(frozen=True)
class Scale:
    """Sizes for one width of screen."""

    width: float
    height: float
    """Of a box."""
    gap: float
    """Between layers."""
    beside: float
    """Between the boxes of a layer."""


WIDE = Scale(width=224, height=104, gap=56, beside=24)
TALL = Scale(width=296, height=104, gap=28, beside=0)


@dataclass(frozen=True)
class Line:
    """From a step to one that reads it."""

    source: int
    target: int
    path: str
    """As SVG writes it."""
    critical: bool


@dataclass(frozen=True)
class Drawing:
    """Where everything is."""

    width: float
    height: float
    box: Scale
    places: tuple[Point, ...]
    """The upper left corner of each step's box."""
    lines: tuple[Line, ...]


def critical_chain(workflow: Workflow, seconds: Sequence[float]) -> tuple[int, ...]:
    """The steps that the answer had to wait for, first to last."""
    finish: list[float] = []
    for step, own in zip(workflow.steps, seconds, strict=True):
        finish.append(own + max((finish[i] for i in step.access), default=0.0))
    chain = [len(finish) - 1]
    while access := workflow.steps[chain[-1]].access:
        chain.append(max(access, key=lambda i: finish[i]))
    return tuple(reversed(chain))


def wide(workflow: Workflow, chain: Sequence[int] = ()) -> Drawing:
    """From left to right, a layer a column."""
    tallest = max(map(len, workflow.layers))
    depth = tallest * (WIDE.height + WIDE.beside) - WIDE.beside
    places: dict[int, Point] = {}
    for column, layer in enumerate(workflow.layers):
        top = (depth - len(layer) * (WIDE.height + WIDE.beside) + WIDE.beside) / 2
        for row, step in enumerate(layer):
            places[step] = (column * (WIDE.width + WIDE.gap), top + row * (WIDE.height + WIDE.beside))
    lanes = _lanes(workflow, workflow.layers)

    def route(source: int, target: int) -> str:
        x1, y1 = places[source][0] + WIDE.width, places[source][1] + WIDE.height / 2
        x2, y2 = places[target][0], places[target][1] + WIDE.height / 2
        if x2 - x1 == WIDE.gap:
            return _curve((x1, y1), (x2, y2))
        lane = depth + LANE * (1 + lanes[source])
        down, up = x1 + WIDE.gap / 3, x2 - WIDE.gap / 3
        return _elbow([(x1, y1), (down, y1), (down, lane), (up, lane), (up, y2), (x2, y2)])

    width = len(workflow.layers) * (WIDE.width + WIDE.gap) - WIDE.gap
    height = depth + LANE * (len(lanes) + 1) * bool(lanes)
    return Drawing(width, height, WIDE, _in_order(places), _lines(workflow, chain, route))


def tall(workflow: Workflow, chain: Sequence[int] = ()) -> Drawing:
    """From top to bottom, a step a row, for a narrow screen."""
    rows = [(step,) for step in range(len(workflow.steps))]
    lanes = _lanes(workflow, rows)
    left = LANE * (len(lanes) + 1) * bool(lanes)
    places = {step: (left, step * (TALL.height + TALL.gap)) for (step,) in rows}

    def route(source: int, target: int) -> str:
        (x, y1), (_, y2) = places[source], places[target]
        if target == source + 1:
            middle = x + TALL.width / 2
            return f"M{middle:g} {y1 + TALL.height:g}V{y2:g}"
        lane = left - LANE * (1 + lanes[source])
        start, end = y1 + TALL.height * 0.65, y2 + TALL.height * 0.35
        return _elbow([(x, start), (lane, start), (lane, end), (x, end)])

    height = len(rows) * (TALL.height + TALL.gap) - TALL.gap
    return Drawing(left + TALL.width, height, TALL, _in_order(places), _lines(workflow, chain, route))


def _lanes(workflow: Workflow, layers: Layers) -> dict[int, int]:
    """A lane for each step that is read further on than in the next layer."""
    at = {step: level for level, layer in enumerate(layers) for step in layer}
    far = {i for target, step in enumerate(workflow.steps) for i in step.access if at[target] > at[i] + 1}
    return {source: lane for lane, source in enumerate(sorted(far))}


def _lines(workflow: Workflow, chain: Sequence[int], route: Callable[[int, int], str]) -> tuple[Line, ...]:
    critical = set(pairwise(chain))
    found = [(source, target) for target, step in enumerate(workflow.steps) for source in sorted(step.access)]
    found.sort(key=critical.__contains__)  # drawn last, so on top
    return tuple(Line(source, target, route(source, target), (source, target) in critical) for source, target in found)


def _in_order(places: dict[int, Point]) -> tuple[Point, ...]:
    return tuple(places[step] for step in sorted(places))


def _curve(start: Point, end: Point) -> str:
    (x1, y1), (x2, y2) = start, end
    middle = (x1 + x2) / 2
    return f"M{x1:g} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"


def _elbow(points: Sequence[Point]) -> str:
    """Straight lines with rounded corners."""
    path = "M{:g} {:g}".format(*points[0])
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        path += "L{:g} {:g}Q{:g} {:g} {:g} {:g}".format(*_towards(corner, before), *corner, *_towards(corner, after))
    return path + "L{:g} {:g}".format(*points[-1])


def _towards(corner: Point, other: Point) -> Point:
    """A little way from `corner` to `other`."""
    length = abs(other[0] - corner[0]) + abs(other[1] - corner[1])
    share = min(CORNER, length / 2) / length if length else 0.0
    return corner[0] + (other[0] - corner[0]) * share, corner[1] + (other[1] - corner[1]) * share
