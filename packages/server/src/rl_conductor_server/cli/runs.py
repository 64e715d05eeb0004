"""`runs`: what a server has run, newest first."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import cost, counted, seconds
from rl_conductor.cli.output import console
from rl_conductor_server.cli import stored
from rl_conductor_server.store import RunRow, Search, Store

MARKS = {
    "done": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "cancelled": ("–", "dim"),
    "running": ("…", "cyan"),
}
WHICH = "Which"


TextOption = Annotated[
    str | None, typer.Option("--text", metavar="TEXT", help="In what was asked or answered.", rich_help_panel=WHICH)
]
StatusOption = Annotated[
    Literal["running", "done", "failed", "cancelled"] | None,
    typer.Option("--status", help="Only runs with this status.", rich_help_panel=WHICH),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model that was asked.", rich_help_panel=WHICH)
]
WorkerOption = Annotated[
    str | None, typer.Option("--worker", metavar="NAME", help="Who took part.", rich_help_panel=WHICH)
]
KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="NAME", help="On whose account.", rich_help_panel=WHICH)
]
SinceOption = Annotated[
    datetime | None, typer.Option("--since", help="Started at this time or later.", rich_help_panel=WHICH)
]
BeforeOption = Annotated[datetime | None, typer.Option("--before", help="Started earlier.", rich_help_panel=WHICH)]
MostOption = Annotated[int, typer.Option("--most", "-n", min=1, metavar="N", help="How many.", rich_help_panel=WHICH)]
MostExported = Annotated[int, typer.Option("--most", "-n", min=1, metavar="N", help="How many.", rich_help_panel=WHICH)]
AsJson = Annotated[bool, typer.Option("--json", help="Print them as JSON, and nothing else.")]


app = typer.Typer(invoke_without_command=True, add_completion=False)


@app.callback()
def runs(
    ctx: typer.Context,
    *,
    text: TextOption = None,
    status: StatusOption = None,
    model: ModelOption = None,
    worker: WorkerOption = None,
    key: KeyOption = None,
    since: SinceOption = None,
    before: BeforeOption = None,
    most: MostOption = 20,
    as_json: AsJson = False,
    store: stored.StoreOption = None,
    config: stored.ConfigOption = None,
) -> None:
    """List the runs of a server, newest first.

    \b
    Examples:
      rl-conductor runs
      rl-conductor runs --status failed --since 2026-11-01
      rl-conductor runs --config conductor.toml --key team-a --json
      rl-conductor runs export --since 2026-11-01 > runs.jsonl
    """
    if ctx.invoked_subcommand is not None:
        return
    search = _search(text=text, status=status, model=model, worker=worker, key=key, since=since, before=before)

    async def look(kept: Store) -> Sequence[RunRow]:
        return await kept.runs(search, most=most)

    found = stored.read(store, config, look)
    if as_json:
        console.write_json(json.dumps([row.model_dump(mode="json") for row in found], indent=2))
    elif found:
        console.stdout().print(_table(found))
    else:
        console.note(console.stderr(), "no such run")


@app.command()
def export(
    *,
    text: TextOption = None,
    status: StatusOption = None,
    model: ModelOption = None,
    worker: WorkerOption = None,
    key: KeyOption = None,
    since: SinceOption = None,
    before: BeforeOption = None,
    most: MostExported = 20_000,
    store: stored.StoreOption = None,
    config: stored.ConfigOption = None,
) -> None:
    """Write the traces of finished runs to standard output, one JSON object a line, newest first.

    Runs without a stored trace are left out. 'calibrate --runs FILE' learns from such a file.

    \b
    Examples:
      rl-conductor runs export > runs.jsonl
      rl-conductor runs export --since 2026-11-01 --status done --config conductor.toml > runs.jsonl
    """
    search = _search(text=text, status=status, model=model, worker=worker, key=key, since=since, before=before)

    async def write(kept: Store) -> int:
        exported = 0
        for row in await kept.runs(search, most=most):
            trace = await kept.trace(row.id)
            if trace is not None:
                sys.stdout.write(f"{trace.model_dump_json()}\n")
                exported += 1
        return exported

    console.note(console.stderr(), f"exported {counted(stored.read(store, config, write), 'trace')}")


def _search(*, since: datetime | None, before: datetime | None, **fields: str | None) -> Search:
    return Search.model_validate(
        fields
        | {
            "since": since.timestamp() if since else None,
            "before": before.timestamp() if before else None,
        }
    )


def _table(rows: Sequence[RunRow]) -> Table:
    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("run", "begun", ""):
        drawn.add_column(name, no_wrap=True)
    for name in ("took", "tokens", "cost"):
        drawn.add_column(name, justify="right", no_wrap=True)
    for name in ("asked", "key", "question"):
        drawn.add_column(name)
    for row in rows:
        drawn.add_row(
            row.id,
            f"{datetime.fromtimestamp(row.created):%m-%d %H:%M}",
            Text(*MARKS[row.status]),
            "" if row.seconds is None else seconds(row.seconds),
            f"{row.usage.total_tokens:,}",
            cost(row.usage),
            *(_cut(part) for part in (row.asked_model, row.key, row.question)),
        )
    return drawn


def _cut(text: str) -> Text:
    """One line of `text`, as long as there is room."""
    return Text(console.one_line(text), no_wrap=True, overflow="ellipsis")
