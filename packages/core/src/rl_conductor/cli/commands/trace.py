"""`trace`: shows a saved run, or replays it."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from rl_conductor._internal.formatting import counted
from rl_conductor.cli import exit_codes
from rl_conductor.cli.input.files import read_trace
from rl_conductor.cli.output import console, report
from rl_conductor.errors import ConfigError
from rl_conductor.replay import differences, replay
from rl_conductor.trace.trace import Trace

app = typer.Typer(help="Show or replay a run saved with --save.", no_args_is_help=True, add_completion=False)

File = Annotated[str, typer.Argument(metavar="FILE", help="A trace; '-' is stdin.")]
Steps = Annotated[
    list[int] | None,
    typer.Option(
        "--step",
        "-s",
        min=0,
        metavar="N",
        help="Also print all messages of this step; 0 is the planner; may be repeated.",
        show_default=False,
    ),
]


@app.command()
def show(file: File, step: Steps = None) -> None:
    """Show a run: its steps, costs and problems.

    \b
    Examples:
      rl-conductor trace show run.json
      rl-conductor trace show run.json --step 0 --step 2
    """
    print_trace(read_trace(file), step)


def print_trace(trace: Trace, steps: list[int] | None) -> None:
    """Prints the report of a run, and all messages of these steps.

    Raises:
        ConfigError: there is no such step.
    """
    exchanges = [_exchange(trace, number) for number in steps or ()]
    out = console.stdout()
    out.print(report.full_report(trace))
    for exchange in exchanges:
        out.print()
        out.print(exchange)


def _exchange(trace: Trace, number: int) -> Group:
    exchange = list(report.step_exchange(trace, number))
    if not exchange:
        steps = max((len(round_.results) for round_ in trace.rounds), default=0)
        raise ConfigError(f"--step {number} made no call: the steps are 1 to {steps}, and 0 is the planner")
    return Group(*exchange)


@app.command("replay")
def replay_file(file: File) -> None:
    """Replay a run from its recorded replies, and compare the results.

    No model is called and nothing is spent. Differences mean that the trace was edited,
    or that another version of rl-conductor recorded it.

    \b
    Examples:
      rl-conductor trace replay run.json
    """
    trace = read_trace(file)
    replayed = asyncio.run(replay(trace))
    mismatches = differences(trace, replayed)
    out = console.stdout()
    for line in mismatches:
        out.print(Text.assemble(("≠ ", "yellow"), console.one_line(line)), soft_wrap=not out.is_terminal)
    if mismatches:
        console.fail(f"the replay differs in {counted(len(mismatches), 'place')}")
        raise typer.Exit(exit_codes.FAILURE)
    calls = len(replayed.calls)
    out.print(Text.assemble(("✓ ", "green"), f"the same run: all {calls} calls were answered from the trace"))
