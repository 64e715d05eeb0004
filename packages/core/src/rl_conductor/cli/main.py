"""The command `rl-conductor`: collects the commands of every installed package and prints errors in one line.

A command is a function or a `typer.Typer`, imported when it is used. Other packages add theirs through the entry point
group `rl_conductor.commands`.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rl_conductor.cli import exit_codes, streams
from rl_conductor.cli.add_ons import ADD_ONS, install_command
from rl_conductor.cli.input.env_file import load_env_file
from rl_conductor.cli.output import console
from rl_conductor.cli.usage_hints import HintingCommand, reject_misplaced_env_file
from rl_conductor.errors import ConductorError, ConfigError, WorkflowError

ENTRY_POINTS = "rl_conductor.commands"
COMMANDS = {
    "ask": "rl_conductor.cli.commands.ask:ask",
    "chat": "rl_conductor.cli.commands.chat:chat",
    "plan": "rl_conductor.cli.commands.plan:plan",
    "run": "rl_conductor.cli.commands.run:run",
    "pool": "rl_conductor.cli.commands.pool:pool",
    "models": "rl_conductor.cli.commands.models:app",
    "trace": "rl_conductor.cli.commands.trace:app",
    "mcp": "rl_conductor.cli.commands.mcp.command:mcp",
    "a2a": "rl_conductor.cli.commands.a2a.command:a2a",
    "doctor": "rl_conductor.cli.commands.doctor:doctor",
}
"""The commands of this package."""


@cache
def installed_commands() -> Mapping[str, str]:
    """Returns the name and `module:attribute` of each command: those of this package, of our others, of anyone else."""
    added = {entry.name: entry.value for entry in entry_points(group=ENTRY_POINTS)}
    ordered = [name for name in ADD_ONS if name in added] + sorted(added.keys() - ADD_ONS.keys())
    return COMMANDS | {name: added[name] for name in ordered if name not in COMMANDS}


class Cli(TyperGroup):
    """Imports a command when it is used, and turns this package's errors into one line and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer passes it
        """Lists installed commands, then those of packages that are not installed."""
        return list(dict.fromkeys([*installed_commands(), *ADD_ONS]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - typer passes it
        """Returns the command of this name, or `None`."""
        if cmd_name in installed_commands():
            return load_command(cmd_name)
        return _missing_command(cmd_name, ADD_ONS[cmd_name]) if cmd_name in ADD_ONS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command; an unknown name is an error that lists similar names."""
        names = self.list_commands(ctx)
        if args[0] not in names and not ctx.resilient_parsing:
            similar = get_close_matches(args[0], names)
            if similar:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(map(repr, similar))}?")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            reject_misplaced_env_file(ctx, command, args[0], rest)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Runs the command and turns our errors into one line and an exit code."""
        try:
            return super().invoke(ctx)
        except ConductorError as error:
            console.fail(str(error))
            # Only a workflow of the user raises `WorkflowError` here; a model's invalid plan is recorded in the trace.
            is_usage_error = isinstance(error, ConfigError | WorkflowError)
            raise typer.Exit(exit_codes.USAGE_ERROR if is_usage_error else exit_codes.FAILURE) from error


def load_command(name: str) -> Any:
    """Imports an installed command."""
    module, _, attribute = installed_commands()[name].partition(":")
    target = getattr(import_module(module), attribute)
    if isinstance(target, typer.Typer):
        command = typer.main.get_command(target)
    else:
        wrapper = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
        wrapper.command(name, cls=HintingCommand)(target)
        command = typer.main.get_command(wrapper)
    command.name = name
    _join_lines(command)
    return command


def _join_lines(command: Any) -> None:
    """Joins the lines of each paragraph of a command's help, which typer would break where the docstring does."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(text if text.startswith("\b") else text.replace("\n", " ") for text in paragraphs)
    for subcommand in getattr(command, "commands", {}).values():
        _join_lines(subcommand)


def _missing_command(name: str, package: str) -> Any:
    def command() -> None:
        raise ConfigError(f"'{name}' comes with the package {package}: {install_command(package)}")

    command.__doc__ = f"Not installed: {install_command(package)}"
    wrapper = typer.Typer(add_completion=False)
    wrapper.command(name, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(command)
    return typer.main.get_command(wrapper)


app = typer.Typer(
    cls=Cli,
    name="rl-conductor",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        sys.stdout.write(f"rl-conductor {version('rl-conductor')}\n")
        raise typer.Exit


@app.callback()
def rl_conductor(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    env_file: Annotated[
        Path | None,
        typer.Option(
            "--env-file",
            metavar="FILE",
            help="Set environment variables, such as API keys, from this file; those that are set already stay.",
        ),
    ] = None,
) -> None:
    """Answer questions with a team of language models: a planner assigns subtasks, workers run them.

    \b
    Start here:
      rl-conductor doctor                     check what can run on this machine
      rl-conductor ask "What is 12 * 12?"     answer a question
      rl-conductor plan "..."                 show the plan without running it
      rl-conductor --env-file .env ask "..."  with the keys of a file

    Exit codes: 0 an answer, 1 no answer, 2 an invalid command or file, 130 Ctrl-C, 143 SIGTERM.
    """
    if env_file is not None:
        load_env_file(env_file)
    if context.invoked_subcommand != "serve":  # the other commands print a run's errors themselves
        logging.getLogger("rl_conductor.run").addHandler(logging.NullHandler())


def main() -> None:
    """Runs the command line."""
    streams.prepare_streams()
    with streams.report_output_errors():
        app()


if __name__ == "__main__":  # for `accelerate launch -m rl_conductor.cli.main`
    main()
