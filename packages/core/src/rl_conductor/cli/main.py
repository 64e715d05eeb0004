"""The command `rl-conductor`: its commands, and what an error looks like."""

from __future__ import annotations

import io
import logging
import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rl_conductor.cli import (
    ask,
    audit,
    audit_spend,
    bench,
    calibrate,
    console,
    doctor,
    models,
    plan,
    pool,
    routes,
    run,
    runs,
    serve,
    show,
    trace,
    train,
)
from rl_conductor.errors import ConductorError, ConfigError, WorkflowError

MISTAKE = 2
FAILURE = 1


class Cli(TyperGroup):
    """Turns this package's errors into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ConductorError as error:
            console.fail(str(error))
            # A workflow that may not run was written by the user: what a model writes badly is data on the trace.
            raise typer.Exit(MISTAKE if isinstance(error, ConfigError | WorkflowError) else FAILURE) from error


app = typer.Typer(
    cls=Cli,
    name="rl-conductor",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command()(ask.ask)
app.command()(plan.plan)
app.command()(run.run)
app.command()(pool.pool)
app.add_typer(models.app, name="models")
app.add_typer(trace.app, name="trace")
app.command()(doctor.doctor)
app.command()(serve.serve)
app.command()(runs.runs)
app.command()(show.show)
app.command()(audit.audit)
app.command()(routes.routes)
app.command()(audit_spend.audit_spend)
app.command()(bench.bench)
app.command()(calibrate.calibrate)
app.command()(train.train)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"rl-conductor {version('rl-conductor')}\n")
        raise typer.Exit


@app.callback()
def rl_conductor(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A language model that answers by planning who does what among other models, and running it.

    \b
    Start here:
      rl-conductor doctor                     what could run on this machine
      rl-conductor ask "What is 12 * 12?"     an answer, and who made it
      rl-conductor plan "..."                 who would do what

    Exit codes: 0 an answer, 1 no answer, 2 a mistake in the command or a file, 130 Ctrl-C.
    """
    if context.invoked_subcommand != "serve":  # the others print what went wrong in a run themselves
        logging.getLogger("rl_conductor.run").addHandler(logging.NullHandler())


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that can't show a letter must not end a run
    app()


if __name__ == "__main__":  # for `accelerate launch -m rl_conductor.cli.main`
    main()
