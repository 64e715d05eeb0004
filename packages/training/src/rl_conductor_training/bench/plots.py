"""Plots of the report as standalone SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from rl_conductor_training.bench.runner import SystemResult
from rl_conductor_training.bench.summary import SummaryRow, worker_shares

STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "rl-conductor",
}
SIZE = (7.0, 3.8)


def plot_pareto(rows: Sequence[SummaryRow], unit: Literal["tokens", "dollars"]) -> str:
    """Plots accuracy against mean cost per question, with the Pareto frontier of systems that don't see the answers."""
    with rc_context(STYLE):
        figure, axes = _new_figure()
        points = {row.system: (getattr(row, unit), row.accuracy) for row in rows}
        for name, (amount, accuracy) in points.items():
            axes.errorbar(amount, accuracy.value, yerr=accuracy.error, fmt="o", markersize=4, capsize=2, linewidth=0.8)
            axes.annotate(name, (amount, accuracy.value), xytext=(4, 4), textcoords="offset points")
        comparable = [row.system for row in rows if not row.sees_answers]
        frontier = pareto_frontier([(name, points[name][0], points[name][1].value) for name in comparable])
        costs, values = [points[name][0] for name in frontier], [points[name][1].value for name in frontier]
        axes.plot(costs, values, color="0.7", zorder=0)
        if min(amount for amount, _ in points.values()) > 0:
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel=f"{unit} per question", ylabel="accuracy", ylim=(0, 1.05))
        return _to_svg(figure)


def pareto_frontier(points: Sequence[tuple[str, float, float]]) -> list[str]:
    """Returns the names of the points (name, cost, value) on the Pareto frontier, by cost."""
    frontier: list[str] = []
    best = float("-inf")
    for name, _, value in sorted(points, key=lambda point: (point[1], -point[2])):
        if value > best:
            frontier.append(name)
            best = value
    return frontier


def plot_steps_by_depth(rows: Sequence[SummaryRow]) -> str:
    """Plots the mean number of steps by question depth, for systems where it varies."""
    with rc_context(STYLE):
        figure, axes = _new_figure()
        for row in rows:
            if len(set(row.steps_by_depth.values())) > 1:
                axes.plot(list(row.steps_by_depth), list(row.steps_by_depth.values()), marker="o", label=row.system)
        return _finish_depth_plot(figure, axes, "steps")


def plot_accuracy_by_depth(rows: Sequence[SummaryRow]) -> str:
    """Plots accuracy by question depth."""
    with rc_context(STYLE):
        figure, axes = _new_figure()
        for row in rows:
            values = [accuracy.value for accuracy in row.accuracy_by_depth.values()]
            axes.plot(list(row.accuracy_by_depth), values, marker="o", label=row.system)
        axes.set(ylim=(0, 1.05))
        return _finish_depth_plot(figure, axes, "accuracy")


def plot_worker_shares(systems: Sequence[SystemResult]) -> str:
    """Plots each worker's share of the steps, by system and question domain."""
    with rc_context(STYLE):
        bars = [
            (f"{result.system.name}: {domain or 'all'}", shares)
            for result in systems
            for domain, shares in worker_shares(result).items()
        ]
        figure, axes = _new_figure(height=1.2 + 0.22 * len(bars))
        starts = [0.0] * len(bars)
        for worker in dict.fromkeys(name for _, shares in bars for name in shares):
            widths = [shares.get(worker, 0.0) for _, shares in bars]
            axes.barh(range(len(bars)), widths, left=starts, label=worker)
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        axes.set_yticks(range(len(bars)), [name for name, _ in bars])
        axes.invert_yaxis()
        axes.set(xlabel="share of steps", xlim=(0, 1))
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
        return _to_svg(figure)


def _finish_depth_plot(figure: Figure, axes: Axes, label: str) -> str:
    axes.set(xlabel="depth of the question", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.lines:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return _to_svg(figure)


def _new_figure(height: float = SIZE[1]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(SIZE[0], height), layout="constrained")
    return figure, figure.subplots()


def _to_svg(figure: Figure) -> str:
    """Renders the SVG element, without prologue and metadata, so that it can be embedded."""
    text = io.StringIO()
    empty_metadata: dict[str, Any] = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(text, format="svg", metadata=empty_metadata)
    svg = text.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
