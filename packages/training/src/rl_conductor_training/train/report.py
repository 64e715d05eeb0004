"""The page with the curves of a training run: `report.html`. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from rl_conductor._internal.io import write_text
from rl_conductor_training.cut_off_replies import cut_off_table
from rl_conductor_training.plotting import new_figure, plot_style, to_svg
from rl_conductor_training.reporting import render
from rl_conductor_training.train.run_dir import RunRecord, ValidationScore

StepRows = Mapping[int, Mapping[str, float]]
"""The metrics of each step by name."""
WINDOW = 5
"""Number of steps that a curve averages over; the points are single steps."""


class Curve(NamedTuple):
    """A metric in a plot."""

    metric: str
    label: str


SCORES = (Curve("right_if_valid", "right, of the valid plans"), Curve("valid", "valid"))
PLOTS: dict[str, tuple[Curve, ...]] = {
    "Reward": (Curve("reward", "reward"),),
    "Second round": (Curve("kept", "kept"), Curve("repaired", "repaired"), Curve("spoiled", "spoiled")),
    "Diversity of plans": (
        Curve("workers_bits", "entropy of workers (bits)"),
        Curve("steps_bits", "entropy of the number of steps (bits)"),
        Curve("no_advantage", "groups without signal"),
    ),
    "Plans left out": (Curve("masked", "plans in which a call failed"),),
    "Steps per plan": (Curve("steps", "steps"),),
    "Workers' cost per step": (Curve("usd", "US dollars"),),
    "Workers' tokens per step": (Curve("tokens", "tokens"),),
    "Seconds per step": (Curve("step_time", "seconds"),),
}


def write_report(record: RunRecord, steps: StepRows, path: Path) -> None:
    """Writes the report as one HTML file.

    Raises:
        ConfigError: the file can't be written.
    """
    html = render(
        "train.html",
        title=f"Training run: {record.config['model']}",
        record=record,
        window=WINDOW,
        plots=draw_plots(steps, record.validation),
        cut_off=cut_off_table(record.cut_off),
        rows=run_rows(record),
    )
    write_text(path, html)


def draw_plots(steps: StepRows, validation: Sequence[ValidationScore]) -> list[tuple[str, str]]:
    """Draws the plots as pairs of title and SVG; those without data are left out."""
    plots = [("Scores", _draw(SCORES, steps, validation))]
    plots += [(title, _draw(curves, steps)) for title, curves in PLOTS.items()]
    return [(title, svg) for title, svg in plots if svg]


def run_rows(record: RunRecord) -> list[tuple[str, str]]:
    """Returns the facts about a run as pairs of name and value."""
    config = record.config
    rows = [
        ("task", config["task"]["name"]),
        ("steps", f"{record.step} of {config['grpo']['steps']}"),
        ("workers", record.spending.text),
        ("time", f"{record.seconds / 60:.1f} minutes (of the last call)"),
        ("machine", record.machine),
        ("versions", ", ".join(f"{name} {number}" for name, number in record.versions.items())),
    ]
    if record.masked.reasons:
        rows.append(("left out", f"{record.masked.text} (of the last call)"))
    if record.warm_start is not None:
        rows.insert(1, ("warm start", record.warm_start.text))
    return rows


def _draw(curves: Sequence[Curve], steps: StepRows, validation: Sequence[ValidationScore] = ()) -> str:
    """Draws metrics by step: each step as a point, and their moving average as a line; empty without data."""
    points = {
        curve: [(step, row[curve.metric]) for step, row in steps.items() if curve.metric in row] for curve in curves
    }
    if not validation and not any(y for values in points.values() for _, y in values):
        return ""
    with plot_style():
        figure, axes = new_figure()
        for curve, values in points.items():
            if values:
                xs, ys = zip(*values, strict=True)
                (line,) = axes.plot(xs, moving_average(ys, WINDOW), label=curve.label)
                axes.plot(xs, ys, ".", markersize=6, alpha=0.5, color=line.get_color())
        if validation:
            axes.errorbar(
                [row.step for row in validation],
                [row.score for row in validation],
                yerr=[row.error or 0.0 for row in validation],
                fmt="o-",
                markersize=4,
                capsize=2,
                color="black",
                label="validation score ± standard error",
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="step")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
        return to_svg(figure)


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """Averages each value with up to `window - 1` before it."""
    return [sum(part) / len(part) for end in range(1, len(values) + 1) if (part := values[max(0, end - window) : end])]
