"""Tests of the SVG layout of workflow graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise, product

import pytest

from core.runs import workflow
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_server.web.graph_layout import (
    BoxSize,
    GraphLayout,
    Point,
    critical_steps,
    horizontal_layout,
    vertical_layout,
)


def all_workflows(steps: int) -> Iterator[Workflow]:
    """Yields every workflow with this many steps."""
    subsets = [[subset for n in range(i + 1) for subset in combinations(range(i), n)] for i in range(steps)]
    for access_lists in product(*subsets):
        yield workflow(*(("a", "Do it.", access) for access in access_lists))


def crossed_boxes(layout: GraphLayout) -> Iterator[tuple[int, str]]:
    """Yields each box that an edge crosses, with the edge's path; a curve stays between its end points."""
    for edge in layout.edges:
        points = [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+)[ H](-?[\d.]+)", edge.path)]
        for step, corner in enumerate(layout.corners):
            if any(crosses(start, end, corner, layout.box) for start, end in pairwise(points)):
                yield step, edge.path


def crosses(start: Point, end: Point, corner: Point, box: BoxSize) -> bool:
    """True if part of a straight line lies inside a box."""
    sizes = (box.width, box.height)
    sides = zip(start, end, corner, sizes, strict=True)
    return all(max(a, b) > low and min(a, b) < low + size for a, b, low, size in sides)


@pytest.mark.parametrize("create_layout", [horizontal_layout, vertical_layout])
def test_no_edge_crosses_a_box_and_everything_is_inside_the_picture(
    create_layout: Callable[[Workflow], GraphLayout],
) -> None:
    for flow in all_workflows(4):
        layout = create_layout(flow)
        assert list(crossed_boxes(layout)) == []
        assert len(layout.edges) == sum(len(step.access) for step in flow.steps)
        for x, y in layout.corners:
            assert 0 <= x <= layout.width - layout.box.width
            assert 0 <= y <= layout.height - layout.box.height


def test_steps_that_can_run_at_the_same_time_are_side_by_side() -> None:
    layout = horizontal_layout(workflow(("a", "Do.", ()), ("b", "Do.", ()), ("c", "Join.", (0, 1))))
    (x1, y1), (x2, y2), (x3, y3) = layout.corners
    assert x1 == x2 < x3
    assert y1 < y3 < y2


def test_the_critical_steps_are_those_that_the_answer_waited_for() -> None:
    flow = workflow(("a", "Do.", ()), ("b", "Do.", ()), ("c", "Do.", (0,)), ("d", "Join.", (1, 2)))
    assert critical_steps(flow, [1, 5, 1, 1]) == (1, 3)
    assert critical_steps(flow, [3, 5, 3, 1]) == (0, 2, 3)
    assert [edge.critical for edge in horizontal_layout(flow, (0, 2, 3)).edges] == [False, True, True]
    assert flow.critical_path((3, 5, 3, 1)) == 7
