"""The `bench` command: compares systems and writes a table, a report and rows."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import cost_in_words, counted, tokens
from rl_conductor.cli import exit_codes, options
from rl_conductor.cli.embedded import fetch_embedded
from rl_conductor.cli.output import console

if TYPE_CHECKING:
    from rl_conductor_training.bench.report import Report
    from rl_conductor_training.bench.results import SampleResult
    from rl_conductor_training.bench.runner import Bench
    from rl_conductor_training.reporting import Table as ReportTable

REPORT_ONLY_COLUMNS = ("if valid",)
"""Columns that only the report has."""
MAX_WIDTH = 1_000
"""Maximum width of a table in a file or a pipe."""


def bench(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The bench file.")],
    *,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first N samples of each task.")
    ] = None,
    system: Annotated[
        list[str] | None,
        typer.Option("--system", "-s", metavar="NAME", help="Only this system; may be repeated.", show_default=False),
    ] = None,
    usd: Annotated[
        Decimal | None,
        typer.Option(
            "--usd", parser=options.usd, metavar="USD", help="Start no new sample after this amount is spent."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Output folder; default: bench-results/CONFIG."),
    ] = None,
) -> None:
    """Compare systems and their costs on the same samples and workers.

    Rows are appended to FOLDER/rows.jsonl; the same command resumes after an interruption without repeating paid calls.
    The report is FOLDER/report.md and FOLDER/report.html. docs/benchmark.md describes CONFIG.toml.

    \b
    Examples:
      rl-conductor bench recipes/bench-small.toml --limit 20
      rl-conductor bench my-bench.toml --system trained --system best-single
    """
    # Imported here because they import numpy, scipy and matplotlib.
    from rl_conductor_training.bench.report import build_report, write_report  # noqa: PLC0415
    from rl_conductor_training.bench.results import ResultFile  # noqa: PLC0415
    from rl_conductor_training.bench.runner import Bench  # noqa: PLC0415
    from rl_conductor_training.bench.settings import read_settings  # noqa: PLC0415
    from rl_conductor_training.output_folder import lock_folder  # noqa: PLC0415

    settings = read_settings(config) if not system else read_settings(config).select_systems(system)
    fetch_embedded(settings.models)
    folder = out or Path("bench-results") / config.stem
    with lock_folder(folder):
        bench_run = Bench(settings, ResultFile(folder / "rows.jsonl"), limit=limit, budget=usd)
        with show_progress(bench_run):
            sections = asyncio.run(bench_run.run())
        report = build_report(bench_run, sections, command=shlex.join(["rl-conductor", *sys.argv[1:]]))
        write_report(report, folder)
    _print(report)
    console.note(console.stderr(), f"{_format_usage(bench_run)}; the report is in {folder / 'report.html'}")


def _format_usage(bench_run: Bench) -> str:
    usage = bench_run.meter.usage
    cached = f" ({usage.cached_calls:,} of them from the cache)" if usage.cached_calls else ""
    return f"{counted(usage.calls, 'call')}{cached}, {tokens(usage)}, {cost_in_words(bench_run.meter.paid)} paid"


@contextmanager
def show_progress(bench_run: Bench) -> Iterator[None]:
    """Shows a progress bar in a terminal, or prints a line for each system elsewhere.

    Raises:
        typer.Exit: on Ctrl-C, after printing the usage.
    """
    error = console.stderr()
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=error,
        expand=True,
        transient=True,
        disable=not error.is_terminal,
    )
    bar = bars.add_task("preparing", total=None)

    def show(row: SampleResult, completed: int, total: int) -> None:
        name = console.one_line(f"{row.key.pool} · {row.key.task} · {row.key.system}")
        bars.update(bar, description=name, completed=completed, total=total)
        if completed == total and not error.is_terminal:
            console.note(error, f"{name}: {counted(total, 'run')}")

    bench_run.on_row = show
    try:
        with bars:
            yield
    except KeyboardInterrupt:
        console.fail(
            f"interrupted; {_format_usage(bench_run)}; the same command resumes from {str(bench_run.results.path)!r}"
        )
        raise typer.Exit(exit_codes.INTERRUPTED) from None


# --------------------------------------------------------------------------------------- table


def _print(report: Report) -> None:
    from rl_conductor_training.cut_off_replies import TITLE  # noqa: PLC0415 - imports jinja2

    out = console.stdout()
    for section in report.sections:
        out.print(Text(console.one_line(section.title), style="bold"))
        for report_table in (section.systems, section.comparisons):
            if report_table.rows:
                table = _table(report_table)
                if not out.is_terminal:
                    out.width = max(
                        out.width, Measurement.get(out, out.options.update(max_width=MAX_WIDTH), table).maximum
                    )
                out.print(table)
                out.print()
        for remark in section.remarks:
            out.print(Text(f"{console.one_line(remark)}\n"))
        if section.cut_off.rows:
            out.print(Text(TITLE, style="bold"))
            out.print(_table(section.cut_off))
            out.print()


def _table(report_table: ReportTable) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    columns = [number for number, column in enumerate(report_table.columns) if column not in REPORT_ONLY_COLUMNS]
    for number in columns:
        table.add_column(report_table.columns[number], justify="right" if number else "left", no_wrap=not number)
    for row in report_table.rows:
        table.add_row(*(Text(console.one_line(row[number])) for number in columns))
    return table
