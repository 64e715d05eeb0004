"""`show`: prints one run of a server, as `trace show` prints one from a file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rl_conductor._internal.formatting import cost_in_words, counted, tokens
from rl_conductor.cli.commands import trace as traces
from rl_conductor.cli.output import console, report
from rl_conductor.errors import ConfigError
from rl_conductor.trace.trace import Round, Trace
from rl_conductor_server.cli import store_options

if TYPE_CHECKING:
    from rl_conductor_server.store import RunRow, Store


def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Id of the run, from 'rl-conductor runs' or a response header.")
    ],
    *,
    step: traces.Steps = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the complete trace as JSON, and nothing else.")
    ] = False,
    store: store_options.StoreOption = None,
    config: store_options.ConfigOption = None,
) -> None:
    """Show one run of a server: its plan, steps, cost and errors.

    \b
    Examples:
      rl-conductor show run-3f2a9c0d1b7e4a55
      rl-conductor show run-3f2a9c0d1b7e4a55 --step 0 --step 2
      rl-conductor show run-3f2a9c0d1b7e4a55 --json > run.json
    """

    async def load(opened: Store) -> tuple[RunRow, Trace | None, Sequence[Round]]:
        return await store_options.get_run(opened, run), await opened.get_trace(run), await opened.get_rounds(run)

    row, trace, rounds = store_options.with_store(store, config, load)
    if trace is not None and as_json:
        console.write_json(trace.model_dump_json(indent=2))
    elif trace is not None:
        traces.print_trace(trace, step)
    elif as_json or step:
        raise ConfigError(f"run {run!r} has no trace: {_missing_trace_reason(row)}")
    else:
        _print_without_trace(row, rounds)


def _missing_trace_reason(row: RunRow) -> str:
    if row.status == "running":
        return "it has not ended yet"
    return "the server that ran it is gone" if row.lost_its_server else "its content was not to be stored"


def _print_without_trace(row: RunRow, rounds: Sequence[Round]) -> None:
    out = console.stdout()
    facts = {
        "run": row.id,
        "started": f"{datetime.fromtimestamp(row.created, UTC):%Y-%m-%d %H:%M:%S %Z}",
        "model": row.model_label,
        "API key": row.key,
        "status": row.status,
        "error": row.error or "",
        "so far": f"{tokens(row.usage)}, {cost_in_words(row.usage)}, {counted(row.usage.calls, 'call')}",
    }
    out.print(report.key_value_table({name: value for name, value in facts.items() if value}))
    for finished_round in rounds:
        if finished_round.plan.workflow is not None:
            out.print()
            out.print(report.unfinished(finished_round.plan.workflow, finished_round.results))
    out.print()
    console.note(out, f"no trace: {_missing_trace_reason(row)}")
