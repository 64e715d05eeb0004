"""`runs`: lists and exports the runs of a server, newest first; see `delete_runs` for `runs delete`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from rl_conductor._internal.formatting import cost, counted, seconds
from rl_conductor._internal.io import open_for_writing
from rl_conductor._internal.validation import first_field_error
from rl_conductor.cli.output import console
from rl_conductor.errors import ConfigError
from rl_conductor_server.cli import store_options
from rl_conductor_server.cli.delete_runs import delete
from rl_conductor_server.store import FeedbackFilter, RunRow, Search, Store
from rl_conductor_server.store.models import Status

STATUS_MARKS: dict[Status, tuple[str, str]] = {
    "done": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "cancelled": ("–", "dim"),
    "running": ("…", "cyan"),
}
PANEL = "Filters"
MAX_RUNS = 1_000_000
"""Maximum number of runs that are listed or exported at once."""
LISTED_RUNS = 20
EXPORTED_RUNS = 20_000
OTHER_COMMANDS = {"export": "runs --export FILE", "list": "runs", "show": "show RUN"}
"""What to write in place of subcommands that one may expect."""
WIDE = 100
"""Width of a terminal, in columns, from which the list has the model and the key."""


def _time(text: str) -> float:
    """Parses a date or a time, and returns its seconds since 1970."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        message = f"{text!r} is no date, such as 2026-11-01, and no time, such as 2026-11-01T18:30"
        raise typer.BadParameter(message) from None


TextOption = Annotated[
    str | None,
    typer.Option("--text", metavar="TEXT", help="Text in the question or in the answer.", rich_help_panel=PANEL),
]
StatusOption = Annotated[
    Status | None,
    typer.Option("--status", help="Only runs with this status.", rich_help_panel=PANEL),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Name of the requested model.", rich_help_panel=PANEL)
]
WorkerOption = Annotated[
    str | None, typer.Option("--worker", metavar="NAME", help="Worker that was called.", rich_help_panel=PANEL)
]
KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="NAME", help="Name of the API key.", rich_help_panel=PANEL)
]
UserOption = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="End user that the client named.", rich_help_panel=PANEL)
]
MetadataOption = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        metavar="NAME=VALUE",
        help="Entry of the metadata, or a part of any.",
        rich_help_panel=PANEL,
    ),
]
SessionOption = Annotated[
    str | None, typer.Option("--session", metavar="NAME", help="Session of the runs.", rich_help_panel=PANEL)
]
SinceOption = Annotated[
    float | None,
    typer.Option(
        "--since", parser=_time, metavar="TIME", help="Started at this date or time, or later.", rich_help_panel=PANEL
    ),
]
BeforeOption = Annotated[
    float | None,
    typer.Option(
        "--before", parser=_time, metavar="TIME", help="Started before this date or time.", rich_help_panel=PANEL
    ),
]
FeedbackOption = Annotated[
    FeedbackFilter | None,
    typer.Option("--feedback", help="Only runs with a positive or a negative score, or none.", rich_help_panel=PANEL),
]
LimitOption = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        min=1,
        max=MAX_RUNS,
        metavar="N",
        help=f"Maximum number of runs: by default {LISTED_RUNS}, with --export {EXPORTED_RUNS:,}.",
        rich_help_panel=PANEL,
    ),
]
ExportOption = Annotated[
    Path | None,
    typer.Option("--export", metavar="FILE", help="Write the traces of the runs that have ended to a file (JSONL)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the runs as JSON, and nothing else.")]


class _Runs(TyperGroup):
    """Says what to write in place of subcommands that do not exist."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in OTHER_COMMANDS:
            ctx.fail(f"No such command {args[0]!r}. Write 'rl-conductor {OTHER_COMMANDS[args[0]]}'.")
        return super().resolve_command(ctx, args)


app = typer.Typer(add_completion=False, cls=_Runs)
app.command()(delete)


@app.callback(invoke_without_command=True)
def runs(
    ctx: typer.Context,
    *,
    text: TextOption = None,
    status: StatusOption = None,
    model: ModelOption = None,
    worker: WorkerOption = None,
    key: KeyOption = None,
    user: UserOption = None,
    metadata: MetadataOption = None,
    session: SessionOption = None,
    since: SinceOption = None,
    before: BeforeOption = None,
    feedback: FeedbackOption = None,
    limit: LimitOption = None,
    export: ExportOption = None,
    as_json: JsonOption = False,
    store: store_options.StoreOption = None,
    config: store_options.ConfigOption = None,
) -> None:
    """List the runs of a server, newest first, or export their traces.

    An export has one trace per line. Runs without a stored trace are left out. A trace with feedback has it in the
    field 'feedback'. 'learn --from-runs FILE' and 'calibrate --runs FILE' learn from such a file.

    \b
    Examples:
      rl-conductor runs
      rl-conductor runs --status failed --since 2026-11-01
      rl-conductor runs --config server.toml --key team-a --json
      rl-conductor runs --feedback positive --export liked.jsonl
    """
    if ctx.invoked_subcommand is not None:
        _reject_options(ctx)
        return
    if export is not None and as_json:
        raise ConfigError("--json and --export don't go together; an export is JSON")
    rest = {"key": key, "user": user, "metadata": metadata, "session": session, "since": since, "before": before}
    search = _search(text=text, status=status, model=model, worker=worker, feedback=feedback, **rest)
    if export is not None:
        store_options.with_store(store, config, partial(_export, search, limit or EXPORTED_RUNS, export))
        return
    rows = store_options.with_store(store, config, lambda opened: opened.list_runs(search, limit=limit or LISTED_RUNS))
    if as_json:
        console.write_json(json.dumps([row.model_dump(mode="json") for row in rows], indent=2))
    elif rows:
        stdout = console.stdout()
        stdout.print(_table(rows, is_wide=stdout.width >= WIDE))
    else:
        console.note(console.stderr(), "no matching runs")


def _reject_options(ctx: typer.Context) -> None:
    """Raises `ConfigError` if options of the list precede a command, which would not heed them."""
    parameters = {parameter.name: parameter.opts[0] for parameter in ctx.command.params}
    options = [parameters[name] for name, value in ctx.params.items() if value not in (None, False)]
    if options:
        command = f"rl-conductor runs {ctx.invoked_subcommand}"
        raise ConfigError(f"write options after {command!r}, not before it: {', '.join(options)}")


async def _export(search: Search, limit: int, path: Path, store: Store) -> None:
    """Write the traces and print their number, and whether there are more runs."""
    exported = 0
    rows = await store.list_runs(search, limit=limit + 1)
    with open_for_writing(path) as write:
        for row in rows[:limit]:
            trace = await store.get_trace(row.id)
            if trace is not None:
                feedback = tuple(await store.feedback.list(row.id))
                write(trace.model_copy(update={"feedback": feedback}).model_dump_json())
                exported += 1
    console.note(console.stderr(), f"exported {counted(exported, 'trace')}")
    if len(rows) > limit:
        advice = f"there are older runs than the {limit:,} newest; raise --limit to export them, too"
        console.note(console.stderr(), advice, style="yellow")


def _search(**fields: str | float | None) -> Search:
    try:
        return Search.model_validate(fields)
    except ValidationError as error:
        wrong = first_field_error(error)
        raise ConfigError(f"--{wrong.path}: {wrong.message}") from None


def _table(rows: Sequence[RunRow], *, is_wide: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("run", "started", ""):
        table.add_column(name, no_wrap=True)
    for name in ("time", "tokens", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("model", "key", "question") if is_wide else ("question",):
        table.add_column(name)
    for row in rows:
        table.add_row(
            row.id,
            f"{datetime.fromtimestamp(row.created):%m-%d %H:%M}",
            Text(*STATUS_MARKS[row.status]),
            "" if row.seconds is None else seconds(row.seconds),
            f"{row.usage.total_tokens:,}",
            cost(row.usage),
            *(_ellipsized(text) for text in ((row.model_label, row.key) if is_wide else ())),
            _ellipsized(row.question),
        )
    return table


def _ellipsized(text: str) -> Text:
    return Text(console.one_line(text), no_wrap=True, overflow="ellipsis")
