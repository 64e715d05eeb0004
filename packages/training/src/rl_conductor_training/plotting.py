"""Style and SVG output of the plots in reports."""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "rl-conductor",
}
WIDTH, HEIGHT = 7.0, 3.8
"""Size of a plot in inches."""


def plot_style() -> AbstractContextManager[None]:
    """Applies the style of all plots while its block runs."""
    return rc_context(STYLE)


def new_figure(height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Creates a figure with one plot."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def to_svg(figure: Figure) -> str:
    """Renders the SVG element, without prologue and metadata, so that it can be embedded."""
    text = io.StringIO()
    empty_metadata: dict[str, Any] = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(text, format="svg", metadata=empty_metadata)
    svg = text.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
