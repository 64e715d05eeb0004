"""`models`: the providers of models, the small models that run in this process, and their weights."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import megabytes
from rl_conductor.cli import embedded
from rl_conductor.cli.output import console
from rl_conductor.cli.providers import NO_KEY, PROVIDERS, Provider
from rl_conductor.config.discovery import EMBEDDED

app = typer.Typer(
    help="List providers; list and download the embedded models.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command("list")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models that need no key and no server, and whether their weights are downloaded."""
    from rl_conductor.models.llamacpp import weights  # noqa: PLC0415 - needs the `local` extra

    if as_json:
        content = [
            {"model": f"embedded:{name}", "bytes": entry.size, "license": entry.license, "file": file and str(file)}
            for name, entry in weights.PINNED.items()
            for file in (weights.cached(name),)
        ]
        console.write_json(json.dumps(content, indent=2))
        return
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", pad_edge=False)
    for name in ("model", "size", "licence", "weights"):
        table.add_column(name, justify="right" if name == "size" else "left")
    files = {name: weights.cached(name) for name in weights.PINNED}
    for name, entry in weights.PINNED.items():
        state = Text("downloaded", style="green") if files[name] else Text("not downloaded", style="dim")
        table.add_row(Text(f"embedded:{name}", style="bold"), megabytes(entry.size), entry.license, state)
    out = console.stdout()
    out.print(table)
    for folder in dict.fromkeys(file.parent for file in files.values() if file):
        out.print(Text(f"in {folder}", style="dim"), soft_wrap=True)


@app.command("providers")
def list_providers(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the providers of 'provider:model' names, their requirements, and whether they are met.

    Prints the names of environment variables, never their values.
    """
    entries = {name: (provider, *_readiness(provider)) for name, provider in sorted(PROVIDERS.items())}
    if as_json:
        content = [
            {"provider": name, "ready": ready, "state": state, "extra": provider.extra, "keys": provider.keys}
            for name, (provider, ready, state) in entries.items()
        ]
        console.write_json(json.dumps(content, indent=2))
        return
    table = Table.grid(padding=(0, 3, 0, 0))
    for name, (_, ready, state) in entries.items():
        mark = Text("✓", style="green") if ready else Text("·", style="dim")
        table.add_row(mark, Text(f"{name}:", style="bold"), Text(state, style="" if ready else "dim"))
    console.stdout().print(table)


def _readiness(provider: Provider) -> tuple[bool, str]:
    """Returns whether a provider's library and key are there, and names the one that was found or is missing."""
    keys = provider.keys_in(os.environ)
    if missing := provider.missing_libraries():
        return False, f"needs {' and '.join(missing)}: pip install 'rl-conductor[{provider.extra}]'"
    if keys:
        return True, f"{keys[0]} is set"
    if provider.without_key in ("", NO_KEY):
        return bool(provider.without_key), provider.without_key or f"needs {' or '.join(provider.keys)}"
    return False, f"needs {' or '.join(provider.keys)}, or {provider.without_key}"


@app.command()
def fetch(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Model to download; by default those that 'ask' uses.", show_default=False),
    ] = None,
) -> None:
    """Download weights ahead of the first question.

    \b
    Examples:
      rl-conductor models fetch
      rl-conductor models fetch qwen2.5-coder-1.5b
    """
    from rl_conductor.models.llamacpp import weights  # noqa: PLC0415 - needs the `local` extra

    selected = names or [model for model, _ in EMBEDDED.values()]
    selected = [name.removeprefix(embedded.PREFIX) for name in selected]
    for name in selected:
        weights.pinned(name)  # rejects unknown names before the first download
    embedded.fetch(selected)
    for name in selected:
        console.stdout().print(Text.assemble((f"{name} ", "bold"), str(weights.cached(name))), soft_wrap=True)
