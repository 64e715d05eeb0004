"""The `train` command: trains a Conductor and reports the metrics of each step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import dollars
from rl_conductor.cli import exit_codes, options
from rl_conductor.cli.embedded import fetch_embedded
from rl_conductor.cli.output import console
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.output_folder import check_folder
from rl_conductor_training.spending import UNKNOWN_AMOUNT
from rl_conductor_training.train.config import Reporter, TrainConfig, read_config
from rl_conductor_training.train.estimate import project_training
from rl_conductor_training.train.interruption import INTERRUPTED
from rl_conductor_training.train.pools import open_pool

if TYPE_CHECKING:
    from rl_conductor_training.spending import CostEstimate
    from rl_conductor_training.train.progress import Status
    from rl_conductor_training.train.run_dir import RunRecord
    from rl_conductor_training.train.trainers.callbacks import StepMetrics

COLUMNS = {
    "reward": ("reward", "{:.3f}"),
    "valid": ("valid", "{:.0%}"),
    "completions/clipped_ratio": ("cut off", "{:.0%}"),
    "right_if_valid": ("right if valid", "{:.0%}"),
    "masked": ("masked", "{:.0%}"),
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
    "validation": ("validation", "{:.3f}"),
}
"""The displayed metrics of a step, with their headings and formats."""
MAX_ROWS = 20
"""Maximum number of steps in the table."""

STATUS_SECONDS = 30.0
"""Seconds between lines about a long stage."""

UsdOption = Annotated[
    Decimal | None,
    typer.Option("--usd", parser=options.usd, metavar="USD", help="Hard cap on workers, in dollars, of the whole run."),
]
TokensOption = Annotated[
    int | None, typer.Option("--tokens", min=1, metavar="N", help="Hard cap on workers' tokens, of the whole run.")
]
MinutesOption = Annotated[
    float | None, typer.Option("--minutes", min=0.01, metavar="N", help="Hard cap on the time of this call.")
]
SeedOption = Annotated[
    int | None,
    typer.Option("--seed", min=0, metavar="N", help="Seed of the run; default: that of the file.", show_default=False),
]
EstimateOption = Annotated[bool, typer.Option("--estimate", help="Print the expected cost and stop; nothing is spent.")]
ReportToOption = Annotated[
    list[Reporter] | None,
    typer.Option(
        "--report-to",
        metavar="NAME",
        help="Log steps to trackio, wandb or tensorboard instead of keep.report_to; may be repeated.",
    ),
]

OutOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help="The run directory; default: runs/CONFIG.", show_default=False),
]
MaxStepsOption: TypeAlias = Annotated[
    int | None, typer.Option("--max-steps", min=1, metavar="N", help="Stop after step N; the same command resumes.")
]


def train(
    *,
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The training file.")],
    out: OutOption = None,
    max_steps: MaxStepsOption = None,
    usd: UsdOption = None,
    tokens: TokensOption = None,
    minutes: MinutesOption = None,
    seed: SeedOption = None,
    estimate_only: EstimateOption = False,
    report_to: ReportToOption = None,
) -> None:
    """Train a planner with reinforcement learning.

    Workers run its plans, and correct answers are rewarded. It prints the expected cost first. The caps are hard: a
    step that does not fit is discarded, and the state before it is saved. Ctrl-C stops with a checkpoint after the
    current step. The same command resumes an interrupted run.

    \b
    Examples:
      rl-conductor train recipes/cpu.toml --max-steps 3
      rl-conductor train recipes/small.toml --out runs/first --minutes 90
      rl-conductor train recipes/small.toml --out runs/second --seed 1
      rl-conductor train recipes/paper-7b.toml --estimate
      accelerate launch -m rl_conductor.cli.main train recipes/paper-7b.toml --usd 200
    """
    settings = _read_settings(config, seed, report_to)
    folder = out or Path("runs") / config.stem
    if estimate_only:
        _print_estimate(settings)
        return
    from rl_conductor_training.train.setup import check_run  # noqa: PLC0415  imports scipy

    limits = Limits(usd=usd, tokens=tokens, seconds=None if minutes is None else 60 * minutes)
    check_folder(folder)
    if settings.pool.remember:
        check_folder(folder.parent)  # which has the replies of all runs in it
    with open_pool(settings.pool, folder.parent / "replies.sqlite") as pool:
        check_run(settings, folder, pool, limits)
        _run_training(settings, folder, pool, last_step=max_steps, limits=limits)


def _run_training(
    config: TrainConfig, folder: Path, pool: WorkerPool, *, last_step: int | None, limits: Limits
) -> None:
    """Trains, and prints the result in one process of several."""
    from rl_conductor_training.train.train import is_main_process, silence_libraries  # noqa: PLC0415  needs an extra, and seconds
    from rl_conductor_training.train.train import train as run_training  # noqa: PLC0415

    silence_libraries()
    _fetch_weights(config)
    with _show_progress(config) as progress:
        record = run_training(
            config,
            folder,
            pool,
            last_step=last_step,
            limits=limits,
            on_estimate=lambda estimate: console.note(console.stderr(), _format_estimate(estimate)),
            on_step=progress.add_step,
            on_status=progress.set_status,
        )
    if is_main_process():
        _print_result(console.stdout(), record, folder)


def _print_estimate(settings: TrainConfig) -> None:
    """Prints the expected cost, without torch and without any call."""
    from rl_conductor_training.train.setup import TrainingSetup  # noqa: PLC0415  imports scipy

    _fetch_weights(settings)
    with open_pool(settings.pool.model_copy(update={"remember": False}), Path()) as pool:
        setup = TrainingSetup(settings, pool)
        setup.warn_of_copies()
        console.note(console.stderr(), _format_estimate(setup.estimate()))


def _format_estimate(estimate: CostEstimate) -> str:
    return f"expected of the workers: {estimate.text}; rough, until the first step is measured"


def _read_settings(config: Path, seed: int | None, report_to: list[Reporter] | None) -> TrainConfig:
    settings = read_config(config)
    if seed is not None:
        settings = settings.model_copy(update={"seed": seed})
    if report_to:
        keep = settings.keep.model_copy(update={"report_to": tuple(report_to)})
        settings = settings.model_copy(update={"keep": keep})
    return settings


def _fetch_weights(config: TrainConfig) -> None:
    small = config.pool.small
    names = [config.model, *(entry.model for entry in config.pool.workers.values())]
    names += [small.reader, small.coder, small.writer] if small else []
    fetch_embedded(names)


# ------------------------------------------------------------------------------------ progress


@contextmanager
def _show_progress(config: TrainConfig) -> Iterator[_StepLines | _StepTable]:
    """Yields a table that is updated in a terminal, or prints lines elsewhere."""
    error = console.stderr()
    if not error.is_terminal or error.is_dumb_terminal:
        yield _StepLines(error, config)
        return
    table = _StepTable(config)
    with Live(table, console=error, refresh_per_second=4, redirect_stdout=False):
        yield table


@dataclass
class _Projection:
    """Projects the cost of the whole run from the steps of this call."""

    config: TrainConfig
    steps: list[StepMetrics] = field(default_factory=list)

    def add(self, metrics: StepMetrics) -> str:
        """Adds a step and returns the new projection."""
        self.steps.append(metrics)
        estimate = project_training(self.config, self.steps)
        usd = UNKNOWN_AMOUNT if estimate.usd is None else dollars(estimate.usd)
        hours, minutes = divmod(round(estimate.minutes), 60)
        return (
            f"measured so far, the whole run takes {hours} h {minutes:02} min, {estimate.calls:,} calls, "
            f"{estimate.tokens:,} tokens, {usd}, without validation"
        )


class _StepLines:
    """Prints a line for each step and each stage, and the state of long stages now and then."""

    def __init__(self, error: Console, config: TrainConfig) -> None:
        self._error = error
        self._total = config.grpo.steps
        self._projection = _Projection(config)
        self._stage = ""
        self._printed_at = time.monotonic()

    def add_step(self, number: int, metrics: StepMetrics) -> None:
        values = ", ".join(f"{COLUMNS[name][0]} {_cell(metrics, name)}" for name in COLUMNS if name in metrics)
        console.note(self._error, f"step {number} of {self._total}: {values}", style="")
        is_first = not self._projection.steps
        projection = self._projection.add(metrics)
        if is_first:
            console.note(self._error, projection)

    def set_status(self, status: Status) -> None:
        is_late = time.monotonic() - self._printed_at > STATUS_SECONDS
        is_before_steps = not self._projection.steps
        if (status.stage != self._stage and is_before_steps) or is_late:
            self._printed_at = time.monotonic()
            console.note(self._error, _format_status(status))
        self._stage = status.stage


class _StepTable:
    """A live table of the latest steps, with a progress bar and the current work."""

    def __init__(self, config: TrainConfig) -> None:
        self._rows: deque[tuple[int, StepMetrics]] = deque(maxlen=MAX_ROWS)
        self._bar = Progress(
            TextColumn("step {task.completed:.0f} of {task.total:.0f}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("", total=config.grpo.steps)
        self._projection = _Projection(config)
        self._status = self._expected = ""

    def add_step(self, number: int, metrics: StepMetrics) -> None:
        self._rows.append((number, metrics))
        self._bar.update(self._task, completed=number)
        self._expected = self._projection.add(metrics)

    def set_status(self, status: Status) -> None:
        self._status = _format_status(status)

    def __rich__(self) -> Group:
        table = Table(box=None, header_style="dim")
        names = [name for name in COLUMNS if any(name in metrics for _, metrics in self._rows)]
        for heading in ("step", *(COLUMNS[name][0] for name in names)):
            table.add_column(heading, justify="right")
        for number, metrics in self._rows:
            table.add_row(str(number), *(_cell(metrics, name) for name in names))
        lines = [Text(line, style="dim") for line in (self._status, self._expected) if line]
        return Group(*([table] if self._rows else []), self._bar, *lines)


def _format_status(status: Status) -> str:
    return status.stage + (f", {status.completed} of {status.total}" if status.total else "")


def _cell(metrics: StepMetrics, name: str) -> str:
    return COLUMNS[name][1].format(metrics[name]) if name in metrics else ""


# -------------------------------------------------------------------------------------- result


def _print_result(out: Console, record: RunRecord, folder: Path) -> None:
    """Prints the result, and exits with the code of an interruption if Ctrl-C ended the run early."""
    from rl_conductor_training.cut_off_replies import cut_off_table  # noqa: PLC0415 - imports jinja2

    steps = f"{record.step} of {record.config['grpo']['steps']} steps done"
    out.print(f"{steps}; the model is in {folder / 'final'}" if (folder / "final").exists() else steps)
    if record.stopped:
        cap = "" if record.stopped == INTERRUPTED else " with a higher cap"
        out.print(f"Stopped early: {record.stopped}. The same command{cap} resumes the run.")
    if record.warm_start is not None:
        out.print(f"Warm start: {record.warm_start.text}.")
    if record.masked.reasons:
        out.print(f"This call: {record.masked.text}.")
    for worker, remedy, share in cut_off_table(record.cut_off).rows:
        out.print(f"This call: {share} replies of {worker} were cut off, and usually count as wrong; {remedy}.")
    out.print(f"The workers of the whole run used {record.spending.text}.")
    if record.best is not None:
        out.print(f"Best validation score: {record.best.text}; that model is in {folder / 'best'}")
    if record.verdict is not None:
        out.print(record.verdict.text, style="bold")
    out.print(f"The curves are in {folder / 'report.html'}")
    if record.stopped == INTERRUPTED:
        raise typer.Exit(exit_codes.INTERRUPTED)
