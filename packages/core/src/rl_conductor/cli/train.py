"""`train`: a Conductor is trained, step by step, and what it learns is told as it learns it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from rl_conductor.cli import console
from rl_conductor.cli.embedded import PREFIX, fetch
from rl_conductor.train.config import Reporter, TrainConfig, read_config
from rl_conductor.train.pools import opened

if TYPE_CHECKING:
    from rl_conductor.train.folder import RunRecord
    from rl_conductor.train.run import Step

COLUMNS = {
    "reward": ("reward", "{:.3f}"),
    "valid": ("valid", "{:.0%}"),
    "right_if_valid": ("right if valid", "{:.0%}"),
    "no_advantage": ("no signal", "{:.0%}"),
    "steps": ("steps", "{:.1f}"),
    "steps_bits": ("± bits", "{:.2f}"),
    "workers_bits": ("workers bits", "{:.2f}"),
    "kept": ("kept", "{:.0%}"),
    "repaired": ("repaired", "{:.0%}"),
    "spoiled": ("spoiled", "{:.0%}"),
    "regret_single": ("to single", "{:+.2f}"),
    "regret_oracle": ("to oracle", "{:+.2f}"),
    "usd": ("usd", "{:.4f}"),
    "tokens": ("tokens", "{:.0f}"),
    "step_time": ("s", "{:.0f}"),
}
"""What is shown of a step: its heading and its form."""
ROWS = 20
"""Most steps in the table."""


def train(
    *,
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="What to train, on what, and how.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FOLDER", help="The run's folder; runs/NAME when left out.", show_default=False
        ),
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", min=1, metavar="N", help="End after the run's step N; go on later.")
    ] = None,
    max_minutes: Annotated[
        float | None,
        typer.Option("--max-minutes", min=0.0, metavar="M", help="End after the step in which M minutes are over."),
    ] = None,
    report_to: Annotated[
        list[Reporter] | None,
        typer.Option(
            "--report-to",
            metavar="NAME",
            help="Draw curves with trackio, wandb or tensorboard, not where keep.report_to says; may be given again.",
        ),
    ] = None,
) -> None:
    """Train a Conductor: it writes plans, workers run them, and right answers are rewarded.

    The same command goes on where a run was stopped or killed, at the same next step.

    \b
    Examples:
      rl-conductor train recipes/cpu.toml --max-steps 3
      rl-conductor train recipes/small.toml --output runs/first
      accelerate launch -m rl_conductor.cli.main train recipes/paper-7b.toml
    """
    read = read_config(config)
    if report_to:
        read = read.model_copy(update={"keep": read.keep.model_copy(update={"report_to": tuple(report_to)})})
    folder = output or Path("runs") / config.stem
    from rl_conductor.train.run import Stop, hush, speaks  # noqa: PLC0415  needs an extra, and seconds
    from rl_conductor.train.run import train as trained  # noqa: PLC0415

    hush()
    _get_ready(read)
    stop = Stop(step=max_steps, seconds=None if max_minutes is None else 60 * max_minutes)
    with opened(read.pool, folder.parent / "replies.sqlite") as pool, _watching(read.grpo.steps) as told:
        record = trained(read, folder, pool, stop=stop, told=told)
    if speaks():
        _sum_up(console.stdout(), record, folder)


def _get_ready(config: TrainConfig) -> None:
    small = config.pool.small
    named = [config.model, *(entry.model for entry in config.pool.workers.values())]
    named += [small.reader, small.coder, small.writer] if small else []
    fetch(dict.fromkeys(name.rpartition(PREFIX)[2] for name in named if PREFIX in name))


# --------------------------------------------------------------------------------- while it lasts


@contextmanager
def _watching(steps: int) -> Iterator[Callable[[int, Step], None]]:
    """What is to be told of each step: a table that grows in a terminal, a line each anywhere else."""
    error = console.stderr()
    if not error.is_terminal or error.is_dumb_terminal:
        yield _Lines(error, steps).told
        return
    board = _Board(steps)
    with Live(board, console=error, refresh_per_second=4, redirect_stdout=False):
        yield board.told


class _Lines:
    """A line for each step."""

    def __init__(self, error: Console, steps: int) -> None:
        self._error = error
        self._steps = steps

    def told(self, number: int, step: Step) -> None:
        """A step is done."""
        shown = ", ".join(f"{COLUMNS[name][0]} {_cell(step, name)}" for name in COLUMNS if name in step)
        console.note(self._error, f"step {number} of {self._steps}: {shown}", style="")


class _Board:
    """The newest steps, and how far the run is."""

    def __init__(self, steps: int) -> None:
        self._rows: deque[tuple[int, Step]] = deque(maxlen=ROWS)
        self._bar = Progress(
            TextColumn("step {task.completed:.0f} of {task.total:.0f}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("", total=steps)

    def told(self, number: int, step: Step) -> None:
        """A step is done."""
        self._rows.append((number, step))
        self._bar.update(self._task, completed=number)

    def __rich__(self) -> Group:
        table = Table(box=None, header_style="dim")
        known = [name for name in COLUMNS if any(name in step for _, step in self._rows)]
        for heading in ("step", *(COLUMNS[name][0] for name in known)):
            table.add_column(heading, justify="right")
        for number, step in self._rows:
            table.add_row(str(number), *(_cell(step, name) for name in known))
        return Group(table, self._bar)


def _cell(step: Step, name: str) -> str:
    return COLUMNS[name][1].format(step[name]) if name in step else ""


# ---------------------------------------------------------------------------------- when it is over


def _sum_up(out: Console, record: RunRecord, folder: Path) -> None:
    out.print(f"{record.step} of {record.config['grpo']['steps']} steps are done; the model is in {folder / 'final'}")
    if record.warm_start is not None:
        warm = record.warm_start
        out.print(f"It began with {warm.steps} supervised steps on {warm.plans} plans ({warm.source}).")
    out.print("Workers used " + ", ".join(f"{record.totals[name]:g} {name}" for name in record.totals) + ".")
    if record.verdict is not None:
        out.print(record.verdict.text, style="bold")
