"""Where the boxes, lines and columns of the pages lie."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import combinations, pairwise, product

import pytest

from core.runs import workflow
from rl_conductor.types import Usage
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_server.store import Spending
from rl_conductor_server.web.charts import HEIGHT, OTHERS, Chart
from rl_conductor_server.web.drawing import Drawing, Point, Scale, critical_chain, tall, wide


def every_workflow(steps: int) -> Iterator[Workflow]:
    """All that can be made of so many steps."""
    reads = [[one for n in range(i + 1) for one in combinations(range(i), n)] for i in range(steps)]
    for access in product(*reads):
        yield workflow(*(("a", "Do it.", one) for one in access))


def crossed(drawing: Drawing) -> Iterator[tuple[int, str]]:
    """Boxes that a line runs through, and the line; a curve bends only between its ends."""
    for line in drawing.lines:
        points = [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+)[ H](-?[\d.]+)", line.path)]
        for step, corner in enumerate(drawing.places):
            if any(runs_through(start, end, corner, drawing.box) for start, end in pairwise(points)):
                yield step, line.path


def runs_through(start: Point, end: Point, corner: Point, box: Scale) -> bool:
    """Whether a straight line has a part within a box."""
    sizes = (box.width, box.height)
    sides = zip(start, end, corner, sizes, strict=True)
    return all(max(a, b) > low and min(a, b) < low + size for a, b, low, size in sides)


@pytest.mark.parametrize("draw", [wide, tall])
def test_no_line_runs_behind_a_box_and_all_is_within_the_picture(draw: Callable[[Workflow], Drawing]) -> None:
    for one in every_workflow(4):
        drawing = draw(one)
        assert list(crossed(drawing)) == []
        assert len(drawing.lines) == sum(len(step.access) for step in one.steps)
        for x, y in drawing.places:
            assert 0 <= x <= drawing.width - drawing.box.width
            assert 0 <= y <= drawing.height - drawing.box.height


def test_steps_that_can_run_at_the_same_time_stand_side_by_side() -> None:
    drawing = wide(workflow(("a", "Do.", ()), ("b", "Do.", ()), ("c", "Join.", (0, 1))))
    (x1, y1), (x2, y2), (x3, y3) = drawing.places
    assert x1 == x2 < x3
    assert y1 < y3 < y2


def test_the_critical_chain_is_what_the_answer_waited_for() -> None:
    made = workflow(("a", "Do.", ()), ("b", "Do.", ()), ("c", "Do.", (0,)), ("d", "Join.", (1, 2)))
    assert critical_chain(made, [1, 5, 1, 1]) == (1, 3)
    assert critical_chain(made, [3, 5, 3, 1]) == (0, 2, 3)
    assert [line.critical for line in wide(made, (0, 2, 3)).lines] == [False, True, True]
    assert made.critical_path((3, 5, 3, 1)) == 7


def spent(name: str, start: float, dollars: str) -> Spending:
    return Spending(name=name, start=start, usage=Usage(cost=Decimal(dollars), output_tokens=10, calls=1))


def test_columns_are_as_high_as_what_was_spent() -> None:
    chart = Chart.of(
        [spent("a", 100, "3"), spent("b", 100, "1"), spent("a", 120, "1")], "cost", start=100, spans=3, width=10
    )
    assert chart.top == 5
    assert [(part.rank, part.start, part.height) for part in chart.parts] == [
        (0, 100, HEIGHT * 3 / 5),
        (1, 100, HEIGHT / 5),
        (0, 120, HEIGHT / 5),
    ]
    assert chart.parts[0].y + chart.parts[0].height == HEIGHT
    assert chart.parts[1].y + chart.parts[1].height == chart.parts[0].y
    assert [(share.name, share.of_all) for share in chart.shares] == [("a", 0.8), ("b", 0.2)]


def test_names_beyond_the_colours_are_summed_up() -> None:
    chart = Chart.of([spent(f"w{i}", 0, str(20 - i)) for i in range(12)], "cost", start=0, spans=1, width=10)
    assert [share.name for share in chart.shares] == [*(f"w{i}" for i in range(7)), OTHERS]
    assert chart.shares[-1].usage.cost == sum(range(9, 14))
    assert sum(part.height for part in chart.parts) == pytest.approx(HEIGHT * sum(range(9, 21)) / chart.top, abs=0.01)


def test_nothing_spent_is_an_empty_chart() -> None:
    chart = Chart.of([], "tokens", start=0, spans=7, width=10)
    assert (chart.parts, chart.shares, chart.top) == ((), (), 1)
