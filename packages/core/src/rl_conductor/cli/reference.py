"""Writes `docs/cli.md` from the command line itself: `python -m rl_conductor.cli.reference > docs/cli.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer

from rl_conductor.cli.main import app

WIDTH = 84
"""Characters of a line; a code block of the site shows so many."""
HEAD = """\
# The command line

Every command with its options, as `rl-conductor COMMAND --help` prints them.
"""


def reference() -> str:
    """Renders the help of every command as Markdown."""
    return "\n".join([HEAD, *_sections(typer.main.get_command(app), None, "rl-conductor")])


def _sections(command: Any, parent: typer.Context | None, name: str) -> Iterator[str]:
    """Yields the sections of a command and its subcommands; typer has no public types for them."""
    command.rich_markup_mode = None  # frames and colours are for terminals
    context = command.make_context(
        name, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH
    )
    path = context.command_path
    yield f"## `{path}`\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    for subcommand in sorted(command.list_commands(context) if hasattr(command, "list_commands") else ()):
        yield from _sections(command.get_command(context, subcommand), context, subcommand)


if __name__ == "__main__":
    sys.stdout.write(reference())
