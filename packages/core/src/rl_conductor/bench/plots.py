"""The drawings of a report, as SVG that needs no file but itself."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from rl_conductor.bench.runner import Entrant
from rl_conductor.bench.tables import Line, chosen

STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "rl-conductor",
}
SIZE = (7.0, 3.8)


def pareto(lines: Sequence[Line], spent: Literal["tokens", "dollars"]) -> str:
    """Accuracy against what a question costs; the line joins those that nothing cheaper equals, unless it peeks."""
    with rc_context(STYLE):
        figure, axes = _canvas()
        points = {one.system: (getattr(one, spent), one.accuracy) for one in lines}
        for name, (amount, right) in points.items():
            axes.errorbar(amount, right.value, yerr=right.error, fmt="o", markersize=4, capsize=2, linewidth=0.8)
            axes.annotate(name, (amount, right.value), xytext=(4, 4), textcoords="offset points")
        fair = [one.system for one in lines if not one.peeks]
        front = frontier([(one, points[one][0], points[one][1].value) for one in fair])
        axes.plot([points[one][0] for one in front], [points[one][1].value for one in front], color="0.7", zorder=0)
        if min(amount for amount, _ in points.values()) > 0:
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel=f"{spent} a question", ylabel="right", ylim=(0, 1.05))
        return _svg(figure)


def frontier(points: Sequence[tuple[str, float, float]]) -> list[str]:
    """The names of the points (name, cost, value) that no other equals at the same cost or less, by cost."""
    found: list[str] = []
    best = float("-inf")
    for name, _, value in sorted(points, key=lambda point: (point[1], -point[2])):
        if value > best:
            found.append(name)
            best = value
    return found


def depth(lines: Sequence[Line]) -> str:
    """Mean number of steps by the depth of the question, for systems in which it is not always the same."""
    with rc_context(STYLE):
        figure, axes = _canvas()
        for one in lines:
            if len(set(one.steps_by_depth.values())) > 1:
                axes.plot(list(one.steps_by_depth), list(one.steps_by_depth.values()), marker="o", label=one.system)
        return _by_depth(figure, axes, "steps")


def accuracy_by_depth(lines: Sequence[Line]) -> str:
    """Accuracy by the depth of the question."""
    with rc_context(STYLE):
        figure, axes = _canvas()
        for one in lines:
            values = [measured.value for measured in one.by_depth.values()]
            axes.plot(list(one.by_depth), values, marker="o", label=one.system)
        axes.set(ylim=(0, 1.05))
        return _by_depth(figure, axes, "right")


def workers(entrants: Sequence[Entrant]) -> str:
    """The share of steps that each worker did, by system and kind of question."""
    with rc_context(STYLE):
        bars = [
            (f"{one.system.name}: {domain or 'all'}", shares)
            for one in entrants
            for domain, shares in chosen(one).items()
        ]
        figure, axes = _canvas(height=1.2 + 0.22 * len(bars))
        left = [0.0] * len(bars)
        for worker in dict.fromkeys(name for _, shares in bars for name in shares):
            parts = [shares.get(worker, 0.0) for _, shares in bars]
            axes.barh(range(len(bars)), parts, left=left, label=worker)
            left = [start + part for start, part in zip(left, parts, strict=True)]
        axes.set_yticks(range(len(bars)), [name for name, _ in bars])
        axes.invert_yaxis()
        axes.set(xlabel="share of steps", xlim=(0, 1))
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
        return _svg(figure)


def _by_depth(figure: Figure, axes: Axes, what: str) -> str:
    axes.set(xlabel="depth of the question", ylabel=what)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.lines:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return _svg(figure)


def _canvas(height: float = SIZE[1]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(SIZE[0], height), layout="constrained")
    return figure, figure.subplots()


def _svg(figure: Figure) -> str:
    """The drawing itself, without the prologue of a file of its own."""
    text = io.StringIO()
    nothing: dict[str, Any] = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
