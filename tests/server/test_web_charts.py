"""Tests of the stacked column chart on the spending page."""

from __future__ import annotations

from decimal import Decimal

import pytest

from rl_conductor.types import Usage
from rl_conductor_server.store import Spending
from rl_conductor_server.web.charts import CHART_HEIGHT, OTHERS, Chart


def spending(name: str, start: float, dollars: str) -> Spending:
    return Spending(name=name, start=start, usage=Usage(cost=Decimal(dollars), output_tokens=10, calls=1))


def test_the_height_of_a_segment_is_proportional_to_the_cost() -> None:
    entries = [spending("a", 100, "3"), spending("b", 100, "1"), spending("a", 120, "1")]
    chart = Chart.from_spending(entries, "cost", start=100, columns=3, width=10)
    assert chart.top == 5
    assert [(segment.rank, segment.start, segment.height) for segment in chart.segments] == [
        (0, 100, CHART_HEIGHT * 3 / 5),
        (1, 100, CHART_HEIGHT / 5),
        (0, 120, CHART_HEIGHT / 5),
    ]
    assert chart.segments[0].y + chart.segments[0].height == CHART_HEIGHT
    assert chart.segments[1].y + chart.segments[1].height == chart.segments[0].y
    assert [(series.name, series.share) for series in chart.series] == [("a", 0.8), ("b", 0.2)]


def test_names_beyond_the_available_colours_are_summed_up() -> None:
    entries = [spending(f"w{i}", 0, str(20 - i)) for i in range(12)]
    chart = Chart.from_spending(entries, "cost", start=0, columns=1, width=10)
    assert [series.name for series in chart.series] == [*(f"w{i}" for i in range(7)), OTHERS]
    assert chart.series[-1].usage.cost == sum(range(9, 14))
    heights = sum(segment.height for segment in chart.segments)
    assert heights == pytest.approx(CHART_HEIGHT * sum(range(9, 21)) / chart.top, abs=0.01)


def test_no_spending_gives_an_empty_chart() -> None:
    chart = Chart.from_spending([], "tokens", start=0, columns=7, width=10)
    assert (chart.segments, chart.series, chart.top) == ((), (), 1)
