"""The `train` command: trains a Conductor and reports the metrics of each step."""

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

from rl_conductor.cli.embedded import PREFIX, fetch
from rl_conductor.cli.output import console
from rl_conductor_training.train.config import Reporter, TrainConfig, read_config
from rl_conductor_training.train.pools import open_pool

if TYPE_CHECKING:
    from rl_conductor_training.train.run_dir import RunRecord
    from rl_conductor_training.train.train import StepMetrics

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
"""The displayed metrics of a step, with their headings and formats."""
MAX_ROWS = 20
"""Maximum number of steps in the table."""

ReportToOption = Annotated[
    list[Reporter] | None,
    typer.Option(
        "--report-to",
        metavar="NAME",
        help="Log steps to trackio, wandb or tensorboard instead of keep.report_to; may be repeated.",
    ),
]


def train(
    *,
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The training file.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FOLDER", help="The run directory; default: runs/CONFIG.", show_default=False),
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", min=1, metavar="N", help="Stop after step N; the same command resumes.")
    ] = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            "--max-minutes", min=0.0, metavar="M", help="Stop after M minutes, at the end of the current step."
        ),
    ] = None,
    report_to: ReportToOption = None,
) -> None:
    """Train a Conductor with reinforcement learning: workers run its plans, correct answers are rewarded.

    The same command resumes an interrupted run.

    \b
    Examples:
      rl-conductor train recipes/cpu.toml --max-steps 3
      rl-conductor train recipes/small.toml --output runs/first
      accelerate launch -m rl_conductor.cli.main train recipes/paper-7b.toml
    """
    settings = _read_settings(config, report_to)
    folder = output or Path("runs") / config.stem
    from rl_conductor_training.train.train import StopAfter, is_main_process, silence_libraries  # noqa: PLC0415  needs an extra, and seconds
    from rl_conductor_training.train.train import train as run_training  # noqa: PLC0415

    silence_libraries()
    _fetch_weights(settings)
    stop_after = StopAfter(step=max_steps, seconds=None if max_minutes is None else 60 * max_minutes)
    with (
        open_pool(settings.pool, folder.parent / "replies.sqlite") as pool,
        _step_reporter(settings.grpo.steps) as on_step,
    ):
        record = run_training(settings, folder, pool, stop_after=stop_after, on_step=on_step)
    if is_main_process():
        _print_result(console.stdout(), record, folder)


def _read_settings(config: Path, report_to: list[Reporter] | None) -> TrainConfig:
    settings = read_config(config)
    if not report_to:
        return settings
    return settings.model_copy(update={"keep": settings.keep.model_copy(update={"report_to": tuple(report_to)})})


def _fetch_weights(config: TrainConfig) -> None:
    small = config.pool.small
    names = [config.model, *(entry.model for entry in config.pool.workers.values())]
    names += [small.reader, small.coder, small.writer] if small else []
    fetch(dict.fromkeys(name.rpartition(PREFIX)[2] for name in names if PREFIX in name))


# ------------------------------------------------------------------------------------ progress


@contextmanager
def _step_reporter(total: int) -> Iterator[Callable[[int, StepMetrics], None]]:
    """Yields a callback for each step, which updates a table in a terminal and prints a line elsewhere."""
    error = console.stderr()
    if not error.is_terminal or error.is_dumb_terminal:
        yield _StepLines(error, total).add_step
        return
    table = _StepTable(total)
    with Live(table, console=error, refresh_per_second=4, redirect_stdout=False):
        yield table.add_step


class _StepLines:
    """Prints a line for each step."""

    def __init__(self, error: Console, total: int) -> None:
        self._error = error
        self._total = total

    def add_step(self, number: int, metrics: StepMetrics) -> None:
        values = ", ".join(f"{COLUMNS[name][0]} {_cell(metrics, name)}" for name in COLUMNS if name in metrics)
        console.note(self._error, f"step {number} of {self._total}: {values}", style="")


class _StepTable:
    """A live table of the latest steps, with a progress bar."""

    def __init__(self, total: int) -> None:
        self._rows: deque[tuple[int, StepMetrics]] = deque(maxlen=MAX_ROWS)
        self._bar = Progress(
            TextColumn("step {task.completed:.0f} of {task.total:.0f}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("", total=total)

    def add_step(self, number: int, metrics: StepMetrics) -> None:
        self._rows.append((number, metrics))
        self._bar.update(self._task, completed=number)

    def __rich__(self) -> Group:
        table = Table(box=None, header_style="dim")
        names = [name for name in COLUMNS if any(name in metrics for _, metrics in self._rows)]
        for heading in ("step", *(COLUMNS[name][0] for name in names)):
            table.add_column(heading, justify="right")
        for number, metrics in self._rows:
            table.add_row(str(number), *(_cell(metrics, name) for name in names))
        return Group(table, self._bar)


def _cell(metrics: StepMetrics, name: str) -> str:
    return COLUMNS[name][1].format(metrics[name]) if name in metrics else ""


# -------------------------------------------------------------------------------------- result


def _print_result(out: Console, record: RunRecord, folder: Path) -> None:
    out.print(f"{record.step} of {record.config['grpo']['steps']} steps done; the model is in {folder / 'final'}")
    if record.warm_start is not None:
        warm_start = record.warm_start
        out.print(f"Warm start: {warm_start.steps} supervised steps on {warm_start.plans} plans ({warm_start.source}).")
    out.print("Workers used " + ", ".join(f"{record.totals[name]:g} {name}" for name in record.totals) + ".")
    if record.verdict is not None:
        out.print(record.verdict.text, style="bold")
