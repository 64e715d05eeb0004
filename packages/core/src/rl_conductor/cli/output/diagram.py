"""Draws a workflow: one line per step, with lines at the left that connect steps to the replies they read.

╭── 1 ✓ coder   Solve it.            2.1 s   143   $0.0012
│╭─ 2 ✓ writer  Solve it otherwise.  1.2 s    98   $0.0004
╰┴▶ 3 ✓ coder   Compare the two.     3.0 s   321   $0.0031
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_conductor.cli.output.console import one_line
from rl_conductor.workflow.workflow import Workflow

WORKER_WIDTH = 24


class Gutter(NamedTuple):
    """The lines drawn at the left of a step: on its first line, and on its continuation lines."""

    first: str
    below: str


@dataclass(frozen=True)
class StepRow:
    """The cells of one step in the table."""

    mark: str
    style: str
    worker: str
    subtask: str
    seconds: str = ""
    tokens: str = ""
    cost: str = ""


def table(workflow: Workflow, rows: Sequence[StepRow]) -> Table:
    """Builds a table with one line per step and its status; long subtasks are truncated."""
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, max_width=WORKER_WIDTH, overflow="ellipsis")
    grid.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    for _ in range(3):
        grid.add_column(no_wrap=True, justify="right")
    for number, (gutter, row) in enumerate(zip(gutters(workflow), rows, strict=True), 1):
        grid.add_row(
            Text.assemble((gutter.first, "dim"), str(number)),
            Text(row.mark, style=row.style),
            Text(f"{one_line(row.worker)} ", style="bold" if number == len(rows) else ""),
            Text(one_line(row.subtask), style="dim" if row.seconds else ""),
            Text(row.seconds, style="cyan"),
            Text(row.tokens),
            Text(row.cost, style="green"),
        )
    return grid


def outline(workflow: Workflow, width: int) -> Text:
    """Renders the steps with their complete subtasks, wrapped to `width`."""
    lines = Text()
    names = [one_line(step.worker) for step in workflow.steps]
    widest = min(max(map(len, names)), WORKER_WIDTH)
    for number, (gutter, name, step) in enumerate(zip(gutters(workflow), names, workflow.steps, strict=True), 1):
        lead = Text.assemble((gutter.first, "dim"), f"{number} ", (f"{name:<{widest}}", "bold"), "  ")
        below = Text.assemble((gutter.below, "dim"), " " * (lead.cell_len - len(gutter.below)))
        for place, line in enumerate(_wrap(one_line(step.subtask), max(20, width - lead.cell_len))):
            lines.append_text(below if place else lead).append_text(line).append("\n")
    lines.right_crop(1)
    return lines


def _wrap(text: str, width: int) -> list[Text]:
    return list(Text(text).wrap(Console(width=width), width))


def gutters(workflow: Workflow) -> list[Gutter]:
    """Computes the gutter of each step: one lane for each reply that a later step reads."""
    lanes: list[int | None] = []
    rows: list[tuple[str, str, bool]] = []
    for index, step in enumerate(workflow.steps):
        reading = {place for place, source in enumerate(lanes) if source in step.access}
        ending = {place for place in reading if _last_reader(workflow, lanes[place]) == index}
        own = None
        if _last_reader(workflow, index) is not None:
            free = (place for place, source in enumerate(lanes) if source is None and place > max(reading, default=-1))
            own = next(free, len(lanes))
            lanes[own : own + 1] = [index]
        line = "".join(_glyph(place, lanes, reading, ending, own) for place in range(len(lanes)))
        for place in ending:
            lanes[place] = None
        below = "".join(" " if source is None else "│" for source in lanes)
        rows.append((line, below, bool(reading)))
    width = len(lanes)
    blank = width + 2 if width else 0
    return [Gutter(_connect(line, width, reads=reads), below.ljust(blank)) for line, below, reads in rows]


def _last_reader(workflow: Workflow, source: int | None) -> int | None:
    return max((index for index, step in enumerate(workflow.steps) if source in step.access), default=None)


def _glyph(place: int, lanes: Sequence[int | None], reading: set[int], ending: set[int], own: int | None) -> str:
    begins = min(reading | ({own} if own is not None else set()), default=len(lanes))
    if place == own:
        return "╭" if place == begins else "┬"
    if place in ending:
        return "╰" if place == begins else "┴"
    if place in reading:
        return "├" if place == begins else "┼"
    if lanes[place] is not None:
        return "│"
    return "─" if place > begins else " "


def _connect(line: str, width: int, *, reads: bool) -> str:
    """Extends `line` to its step, with an arrow if the step reads a reply."""
    if not width:
        return ""
    fill = "─" if line.strip("│ ") else " "
    return f"{line.ljust(width, fill)}{'▶' if reads else fill} "
