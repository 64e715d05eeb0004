"""`bench`: systems side by side, as a table, a report and rows."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from rl_conductor.amounts import cost_in_words, counted, tokens
from rl_conductor.cli import conducting, console
from rl_conductor.cli.embedded import PREFIX, fetch

if TYPE_CHECKING:
    from rl_conductor.bench.report import Report
    from rl_conductor.bench.report import Table as Side
    from rl_conductor.bench.rows import Row
    from rl_conductor.bench.runner import Bench


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
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Where rows and reports go; bench-results/CONFIG unless given."),
    ] = None,
) -> None:
    """Compare systems on the same samples, the same workers and the same account of what they spend.

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
    fetch(dict.fromkeys(name.removeprefix(PREFIX) for name in settings.models if name.startswith(PREFIX)))
    folder = out or Path("bench-results") / config.stem
    running = Bench(settings, Results(folder / "rows.jsonl"), limit=limit)
    with _shown(running):
        try:
            sections = asyncio.run(running.run())
        except KeyboardInterrupt:
            console.fail(f"stopped; {_spent(running)}; the same command goes on from {str(running.results.path)!r}")
            raise typer.Exit(conducting.INTERRUPTED) from None
    report = report_of(running, sections, command=shlex.join(["rl-conductor", *sys.argv[1:]]))
    _print(report)
    write(report, folder)
    console.note(console.stderr(), f"{_spent(running)}; the report is in {folder / 'report.html'}")


def _spent(running: Bench) -> str:
    used = running.account.usage
    replayed = f", {used.replayed_calls:,} of them replayed for free" if used.replayed_calls else ""
    return f"{counted(used.calls, 'call')}{replayed}, {tokens(used)}, {cost_in_words(used)}"


@contextmanager
def _shown(running: Bench) -> Iterator[None]:
    """A bar for the system at hand, in a terminal; a line for each that is done anywhere else."""
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

    running.on_row = show
    with bars:
        yield


# ---------------------------------------------------------------------------------------- the table


def _print(report: Report) -> None:
    out = console.stdout()
    for section in report.sections:
        out.print(Text(console.one_line(section.title), style="bold"))
        for side in (section.systems, section.comparisons):
            if side.rows:
                out.print(_table(side))
                out.print()


def _table(side: Side) -> Table:
    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for number, column in enumerate(side.columns):
        drawn.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in side.rows:
        drawn.add_row(*(Text(console.one_line(cell)) for cell in row))
    return drawn
