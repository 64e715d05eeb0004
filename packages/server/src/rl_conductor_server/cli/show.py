"""`show`: one run of a server, told as `trace show` tells one from a file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rl_conductor._internal.formatting import cost_in_words, counted, tokens
from rl_conductor.cli import trace as traces
from rl_conductor.cli.output import console, report
from rl_conductor.errors import ConfigError
from rl_conductor.trace.trace import Round, Trace
from rl_conductor_server.cli import stored

if TYPE_CHECKING:
    from rl_conductor_server.store import RunRow, Store


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Its id: 'rl-conductor runs', or the header of a reply.")],
    *,
    step: traces.Steps = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole trace as JSON, and nothing else.")] = False,
    store: stored.StoreOption = None,
    config: stored.ConfigOption = None,
) -> None:
    """Tell a run of a server: who did what, what it cost, what went wrong.

    \b
    Examples:
      rl-conductor show run-3f2a9c0d1b7e4a55
      rl-conductor show run-3f2a9c0d1b7e4a55 --step 0 --step 2
      rl-conductor show run-3f2a9c0d1b7e4a55 --json > run.json
    """

    async def look(kept: Store) -> tuple[RunRow, Trace | None, Sequence[Round]]:
        return await stored.find_run(kept, run), await kept.trace(run), await kept.so_far(run)

    row, trace, so_far = stored.read(store, config, look)
    if trace is not None and as_json:
        console.write_json(trace.model_dump_json(indent=2))
    elif trace is not None:
        traces.print_trace(trace, step)
    elif as_json or step:
        raise ConfigError(f"there is no trace of run {run!r}: {_why_none(row)}")
    else:
        _tell_what_there_is(row, so_far)


def _why_none(row: RunRow) -> str:
    if row.status == "running":
        return "it is not over yet"
    return "the server that ran it is gone" if row.lost_its_server else "nothing that was said in it was to be kept"


def _tell_what_there_is(row: RunRow, so_far: Sequence[Round]) -> None:
    out = console.stdout()
    facts = {
        "run": row.id,
        "begun": f"{datetime.fromtimestamp(row.created, UTC):%Y-%m-%d %H:%M:%S %Z}",
        "asked": f"{row.asked_model}, on the account of {row.key}",
        "is": row.status,
        "error": row.error or "",
        "so far": f"{tokens(row.usage)}, {cost_in_words(row.usage)}, {counted(row.usage.calls, 'call')}",
    }
    out.print(report.key_value_table({name: value for name, value in facts.items() if value}))
    for one in so_far:
        if one.plan.workflow is not None:
            out.print()
            out.print(report.unfinished(one.plan.workflow, one.results))
    out.print()
    console.note(out, f"there is no trace: {_why_none(row)}")
