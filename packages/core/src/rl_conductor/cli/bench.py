"""`bench`: systems side by side, as a table, a report and rows."""

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

from rl_conductor.amounts import counted, dollars, tokens
from rl_conductor.cli import conducting, console, options
from rl_conductor.cli.embedded import PREFIX, fetch

if TYPE_CHECKING:
    from rl_conductor.bench.report import Report
    from rl_conductor.bench.report import Table as Side
    from rl_conductor.bench.rows import Row
    from rl_conductor.bench.runner import Bench
    from rl_conductor.bench.settings import BenchSettings

TOO_WIDE = ("if valid",)
"""Columns that only the written report has."""
WIDEST = 1_000
"""Columns of a table in a file or a pipe."""


def bench(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="What is compared, and on what.")],
    *,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first N samples of each task.")
    ] = None,
    system: Annotated[
        list[str] | None,
        typer.Option("--system", "-s", metavar="NAME", help="Only this system; may be repeated.", show_default=False),
    ] = None,
    budget: Annotated[
        Decimal | None,
        typer.Option(
            "--budget", parser=options.usd, metavar="USD", help="Begin no further sample once so much is paid."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Where rows and reports go; bench-results/CONFIG unless given."),
    ] = None,
) -> None:
    """Compare systems on the same samples and workers, and what each spends.

    Rows go to FOLDER/rows.jsonl as they are made; the same command goes on after an interruption and pays for nothing
    twice. The report is FOLDER/report.md and FOLDER/report.html. docs/benchmark.md tells what CONFIG.toml may say.

    \b
    Examples:
      rl-conductor bench recipes/bench-small.toml --limit 20
      rl-conductor bench my-bench.toml --system trained --system best-single
    """
    # Imported here because they bring numpy, scipy and matplotlib along.
    from rl_conductor.bench.report import report_of, write  # noqa: PLC0415
    from rl_conductor.bench.rows import Results  # noqa: PLC0415
    from rl_conductor.bench.runner import Bench  # noqa: PLC0415
    from rl_conductor.bench.settings import read_settings  # noqa: PLC0415

    settings = read_settings(config)
    if system:
        settings = settings.only(system)
    get_ready(settings)
    folder = out or Path("bench-results") / config.stem
    made = Bench(settings, Results(folder / "rows.jsonl"), limit=limit, budget=budget)
    with running(made):
        sections = asyncio.run(made.run())
    report = report_of(made, sections, command=shlex.join(["rl-conductor", *sys.argv[1:]]))
    _print(report)
    write(report, folder)
    console.note(console.stderr(), f"{_spent(made)}; the report is in {folder / 'report.html'}")


def get_ready(settings: BenchSettings) -> None:
    """Fetch the weights that are missing."""
    fetch(dict.fromkeys(name.removeprefix(PREFIX) for name in settings.models if name.startswith(PREFIX)))


def _spent(made: Bench) -> str:
    used = made.account.usage
    cached = f" ({used.cached_calls:,} of them from the cache)" if used.cached_calls else ""
    return f"{counted(used.calls, 'call')}{cached}, {tokens(used)}, {dollars(made.account.paid)} paid"


@contextmanager
def running(made: Bench) -> Iterator[None]:
    """Shows a bench while it runs: a bar in a terminal, a line a system elsewhere. Ctrl-C says what was spent.

    Raises:
        typer.Exit: Ctrl-C.
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
    bar = bars.add_task("getting ready", total=None)

    def show(row: Row, done: int, total: int) -> None:
        name = console.one_line(f"{row.key.pool} · {row.key.task} · {row.key.system}")
        bars.update(bar, description=name, completed=done, total=total)
        if done == total and not error.is_terminal:
            console.note(error, f"{name}: {counted(total, 'run')}")

    made.on_row = show
    try:
        with bars:
            yield
    except KeyboardInterrupt:
        console.fail(f"stopped; {_spent(made)}; the same command goes on from {str(made.results.path)!r}")
        raise typer.Exit(conducting.INTERRUPTED) from None


# ---------------------------------------------------------------------------------------- the table


def _print(report: Report) -> None:
    out = console.stdout()
    for section in report.sections:
        out.print(Text(console.one_line(section.title), style="bold"))
        for side in (section.systems, section.comparisons):
            if side.rows:
                drawn = _table(side)
                if not out.is_terminal:
                    out.width = max(
                        out.width, Measurement.get(out, out.options.update(max_width=WIDEST), drawn).maximum
                    )
                out.print(drawn)
                out.print()


def _table(side: Side) -> Table:
    drawn = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    shown = [number for number, column in enumerate(side.columns) if column not in TOO_WIDE]
    for number in shown:
        drawn.add_column(side.columns[number], justify="right" if number else "left", no_wrap=not number)
    for row in side.rows:
        drawn.add_row(*(Text(console.one_line(row[number])) for number in shown))
    return drawn
