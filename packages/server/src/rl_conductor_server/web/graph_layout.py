"""Lays out a workflow as an SVG graph: steps that can run at the same time stand side by side. Pure geometry.

The layers of a plan are known, so no search is needed. An edge to the next layer is drawn directly; one that skips a
layer runs in a lane of its own source, so that no edge runs behind a box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rl_conductor.workflow.workflow import Workflow

Point = tuple[float, float]
Layers = Sequence[Sequence[int]]

CORNER_RADIUS = 10.0
LANE_WIDTH = 14.0


@dataclass(frozen=True)
class BoxSize:
    """Size of the boxes and of the gaps between them."""

    width: float
    height: float
    layer_gap: float
    box_gap: float
    """Between the boxes of one layer."""


HORIZONTAL = BoxSize(width=224, height=104, layer_gap=56, box_gap=24)
VERTICAL = BoxSize(width=296, height=104, layer_gap=28, box_gap=0)


@dataclass(frozen=True)
class Edge:
    """An edge from a step to a step that reads it."""

    source: int
    target: int
    path: str
    """The `d` attribute of an SVG path."""
    critical: bool


@dataclass(frozen=True)
class GraphLayout:
    """Positions of all boxes and edges of a graph."""

    width: float
    height: float
    box: BoxSize
    corners: tuple[Point, ...]
    """The upper left corner of each step's box."""
    edges: tuple[Edge, ...]


def critical_steps(workflow: Workflow, seconds: Sequence[float]) -> tuple[int, ...]:
    """Returns the steps on the critical path, first to last, given the duration of each step."""
    finish: list[float] = []
    for step, duration in zip(workflow.steps, seconds, strict=True):
        finish.append(duration + max((finish[i] for i in step.access), default=0.0))
    path = [len(finish) - 1]
    while access := workflow.steps[path[-1]].access:
        path.append(max(access, key=lambda i: finish[i]))
    return tuple(reversed(path))


def horizontal_layout(workflow: Workflow, critical: Sequence[int] = ()) -> GraphLayout:
    """Lays out the graph from left to right, one column per layer."""
    box = HORIZONTAL
    tallest = max(map(len, workflow.layers))
    depth = tallest * (box.height + box.box_gap) - box.box_gap
    corners: dict[int, Point] = {}
    for column, layer in enumerate(workflow.layers):
        top = (depth - len(layer) * (box.height + box.box_gap) + box.box_gap) / 2
        for row, step in enumerate(layer):
            corners[step] = (column * (box.width + box.layer_gap), top + row * (box.height + box.box_gap))
    lanes = _assign_lanes(workflow, workflow.layers)

    def edge_path(source: int, target: int) -> str:
        x1, y1 = corners[source][0] + box.width, corners[source][1] + box.height / 2
        x2, y2 = corners[target][0], corners[target][1] + box.height / 2
        if x2 - x1 == box.layer_gap:
            return _curve((x1, y1), (x2, y2))
        lane = depth + LANE_WIDTH * (1 + lanes[source])
        down, up = x1 + box.layer_gap / 3, x2 - box.layer_gap / 3
        return _elbow([(x1, y1), (down, y1), (down, lane), (up, lane), (up, y2), (x2, y2)])

    width = len(workflow.layers) * (box.width + box.layer_gap) - box.layer_gap
    height = depth + LANE_WIDTH * (len(lanes) + 1) * bool(lanes)
    return GraphLayout(width, height, box, _in_step_order(corners), _edges(workflow, critical, edge_path))


def vertical_layout(workflow: Workflow, critical: Sequence[int] = ()) -> GraphLayout:
    """Lays out the graph from top to bottom, one row per step, for narrow screens."""
    box = VERTICAL
    rows = [(step,) for step in range(len(workflow.steps))]
    lanes = _assign_lanes(workflow, rows)
    margin = LANE_WIDTH * (len(lanes) + 1) * bool(lanes)
    corners = {step: (margin, step * (box.height + box.layer_gap)) for (step,) in rows}

    def edge_path(source: int, target: int) -> str:
        (x, y1), (_, y2) = corners[source], corners[target]
        if target == source + 1:
            middle = x + box.width / 2
            return f"M{middle:g} {y1 + box.height:g}V{y2:g}"
        lane = margin - LANE_WIDTH * (1 + lanes[source])
        start, end = y1 + box.height * 0.65, y2 + box.height * 0.35
        return _elbow([(x, start), (lane, start), (lane, end), (x, end)])

    height = len(rows) * (box.height + box.layer_gap) - box.layer_gap
    return GraphLayout(margin + box.width, height, box, _in_step_order(corners), _edges(workflow, critical, edge_path))


def _assign_lanes(workflow: Workflow, layers: Layers) -> dict[int, int]:
    """Assigns a lane to each step that is read beyond the next layer."""
    layer_of = {step: level for level, layer in enumerate(layers) for step in layer}
    sources = {
        i for target, step in enumerate(workflow.steps) for i in step.access if layer_of[target] > layer_of[i] + 1
    }
    return {source: lane for lane, source in enumerate(sorted(sources))}


def _edges(workflow: Workflow, critical: Sequence[int], edge_path: Callable[[int, int], str]) -> tuple[Edge, ...]:
    critical_pairs = set(pairwise(critical))
    pairs = [(source, target) for target, step in enumerate(workflow.steps) for source in sorted(step.access)]
    pairs.sort(key=critical_pairs.__contains__)  # SVG paints later elements on top
    return tuple(
        Edge(source, target, edge_path(source, target), (source, target) in critical_pairs) for source, target in pairs
    )


def _in_step_order(corners: dict[int, Point]) -> tuple[Point, ...]:
    return tuple(corners[step] for step in sorted(corners))


def _curve(start: Point, end: Point) -> str:
    (x1, y1), (x2, y2) = start, end
    middle = (x1 + x2) / 2
    return f"M{x1:g} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"


def _elbow(points: Sequence[Point]) -> str:
    """Draws straight lines through `points` with rounded corners."""
    path = "M{:g} {:g}".format(*points[0])
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        path += "L{:g} {:g}Q{:g} {:g} {:g} {:g}".format(*_towards(corner, before), *corner, *_towards(corner, after))
    return path + "L{:g} {:g}".format(*points[-1])


def _towards(corner: Point, other: Point) -> Point:
    """Returns the point at which the rounding of `corner` meets the line to `other`."""
    length = abs(other[0] - corner[0]) + abs(other[1] - corner[1])
    fraction = min(CORNER_RADIUS, length / 2) / length if length else 0.0
    return corner[0] + (other[0] - corner[0]) * fraction, corner[1] + (other[1] - corner[1]) * fraction
