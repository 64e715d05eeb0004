"""Writes `docs/cli.md` from the command line itself: `python -m rl_conductor.cli.reference > docs/cli.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer

from rl_conductor.cli.main import app

WIDTH = 100
HEAD = """\
# The command line

What `--help` says, command by command. Written by `python -m rl_conductor.cli.reference > docs/cli.md`.
"""


def reference() -> str:
    """The help of every command, as Markdown."""
    return "\n".join([HEAD, *_pages(typer.main.get_command(app), None, "rl-conductor")])


def _pages(command: Any, parent: typer.Context | None, name: str) -> Iterator[str]:
    """The page of a command and of those below it; typer does not name the types of its commands in public."""
    command.rich_markup_mode = None  # frames and colours are for terminals
    context = command.make_context(
        name, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH
    )
    path = context.command_path
    yield f"## `{path}`\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    for name_below in sorted(command.list_commands(context) if hasattr(command, "list_commands") else ()):
        yield from _pages(command.get_command(context, name_below), context, name_below)


if __name__ == "__main__":
    sys.stdout.write(reference())
