"""Adds advice to usage errors about unquoted questions, and misplaced pool files and options."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

ENV_FILE = "--env-file"


class HintingCommand(TyperCommand):
    """A command with advice in its error about surplus arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments; surplus ones are an error."""
        allowed, ctx.allow_extra_args = ctx.allow_extra_args, True
        surplus = super().parse_args(ctx, args)
        ctx.allow_extra_args = allowed
        if surplus and not allowed and not ctx.resilient_parsing:
            ctx.fail(f"Got unexpected extra argument(s) ({' '.join(surplus)}){self._hint(surplus)}")
        return surplus

    def _hint(self, surplus: list[str]) -> str:
        if any(parameter.name == "question" for parameter in self.params):
            return ". Write the question in quotes."
        if surplus[0].endswith(".toml") and "--pool" in options_of(self):
            return f". Did you mean '--pool {surplus[0]}'?"
        return ""


def options_of(command: Any) -> set[str]:
    """Returns the names of a command's options."""
    return {name for parameter in command.params for name in parameter.opts}


def reject_misplaced_env_file(ctx: Any, command: Any, name: str, args: list[str]) -> None:
    """Fails if `--env-file`, an option of the program, follows the name of a command that does not have it."""
    before_separator = args[: args.index("--")] if "--" in args else args
    is_present = any(word == ENV_FILE or word.startswith(f"{ENV_FILE}=") for word in before_separator)
    if is_present and not ctx.resilient_parsing and ENV_FILE not in options_of(command):
        ctx.fail(f"{ENV_FILE} stands before the command: rl-conductor {ENV_FILE} FILE {name} ...")
