"""Plots of the report as standalone SVG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from matplotlib.ticker import MaxNLocator, NullFormatter

from rl_conductor_training.bench.runner import SystemResult
from rl_conductor_training.bench.summary import SummaryRow, worker_shares
from rl_conductor_training.plotting import new_figure, plot_style, to_svg


def plot_pareto(rows: Sequence[SummaryRow], unit: Literal["tokens", "dollars"]) -> str:
    """Plots accuracy against mean cost per question, with the Pareto frontier of systems that don't see the answers."""
    with plot_style():
        figure, axes = new_figure()
        points = {row.system: (getattr(row, unit), row.accuracy) for row in rows}
        names_at: dict[tuple[float, float], list[str]] = defaultdict(list)
        for name, (amount, accuracy) in points.items():
            axes.errorbar(amount, accuracy.value, yerr=accuracy.error, fmt="o", markersize=4, capsize=2, linewidth=0.8)
            names_at[amount, accuracy.value].append(name)
        for position, names in names_at.items():  # the best single worker has the same position as that worker alone
            axes.annotate(", ".join(names), position, xytext=(4, 4), textcoords="offset points")
        comparable = [row.system for row in rows if not row.sees_answers]
        frontier = pareto_frontier([(name, points[name][0], points[name][1].value) for name in comparable])
        costs, values = [points[name][0] for name in frontier], [points[name][1].value for name in frontier]
        axes.plot(costs, values, color="0.7", zorder=0)
        if min(amount for amount, _ in points.values()) > 0:
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel=f"{unit} per question", ylabel="accuracy", ylim=(0, 1.05))
        return to_svg(figure)


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
    lines = [(row.system, row.steps_by_depth) for row in rows if len(set(row.steps_by_depth.values())) > 1]
    return _plot_by_depth("steps", lines)


def plot_accuracy_by_depth(rows: Sequence[SummaryRow]) -> str:
    """Plots accuracy by question depth."""
    lines = [(row.system, {depth: accuracy.value for depth, accuracy in row.accuracy_by_depth.items()}) for row in rows]
    return _plot_by_depth("accuracy", lines, ylim=(0, 1.05))


def plot_worker_shares(systems: Sequence[SystemResult]) -> str:
    """Plots each worker's share of the steps, by system and question domain."""
    with plot_style():
        bars = [
            (f"{result.system.name}: {domain or 'all'}", shares)
            for result in systems
            for domain, shares in worker_shares(result).items()
        ]
        figure, axes = new_figure(height=1.2 + 0.22 * len(bars))
        starts = [0.0] * len(bars)
        for worker in dict.fromkeys(name for _, shares in bars for name in shares):
            widths = [shares.get(worker, 0.0) for _, shares in bars]
            axes.barh(range(len(bars)), widths, left=starts, label=worker)
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        axes.set_yticks(range(len(bars)), [name for name, _ in bars])
        axes.invert_yaxis()
        axes.set(xlabel="share of steps", xlim=(0, 1))
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
        return to_svg(figure)


def _plot_by_depth(label: str, lines: Iterable[tuple[str, Mapping[int, float]]], **limits: tuple[float, float]) -> str:
    with plot_style():
        figure, axes = new_figure()
        for name, values in lines:
            axes.plot(list(values), list(values.values()), marker="o", label=name)
        axes.set(xlabel="depth of the question", ylabel=label, **limits)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if axes.lines:
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
        return to_svg(figure)
