"""`doctor`: checks the installation and suggests fixes."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import megabytes
from rl_conductor._internal.version import is_importable
from rl_conductor.cli import exit_codes
from rl_conductor.cli.options import OUTPUT
from rl_conductor.cli.output import console
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.config.discovery import POOL_VARIABLE, SERVERS, VENDORS, discover
from rl_conductor.config.server_models import list_server_models
from rl_conductor.errors import ConfigError
from rl_conductor.models.endpoints import BEDROCK_CLAUDE, ENDPOINTS
from rl_conductor.models.urls import redact_url

ENTRY_POINTS = "rl_conductor.doctor"
"""Entry point group of functions that return findings; the name of an entry is the title of its section."""
LIBRARIES = {
    "openai": ("openai", "OpenAI, OpenRouter, local servers"),
    "anthropic": ("anthropic", "Anthropic"),
    "mcp": ("mcp", "tools of MCP servers, the command mcp"),
    "httpx2": ("google", "Google"),
    "google-auth": ("vertex", "Google Vertex AI"),
    "azure-identity": ("azure", "Azure without a key"),
    "boto3": ("bedrock", "Amazon Bedrock"),
    "a2a-sdk": ("a2a", "agents that speak A2A, the command a2a"),
    "xllamacpp": ("local", "embedded models"),
    "transformers": ("transformers", "hub models"),
    "vllm": ("vllm", "models on a GPU"),
}
"""For each library, the extra that installs it and its purpose."""
KEYS = tuple(key for name in (*VENDORS, "openrouter") for key in ENDPOINTS[name].key_variables)
OTHER_KEYS = tuple(key for endpoint in ENDPOINTS.values() for key in endpoint.key_variables if key not in KEYS)
"""Keys that are listed only if they are set."""
ADDRESSES = tuple(endpoint.address_variable for endpoint in (*ENDPOINTS.values(), BEDROCK_CLAUDE))
"""Environment variables with base URLs, which are shown without passwords."""
PATHS = (
    POOL_VARIABLE,
    "RL_CONDUCTOR_WEIGHTS",
    "RL_CONDUCTOR_WEIGHTS_SOURCE",
    "RL_CONDUCTOR_CACHE",
    *(name for endpoint in ENDPOINTS.values() for name in endpoint.settings),
)
"""Environment variables with paths and other plain values."""


class Finding(NamedTuple):
    """The result of one check."""

    good: bool
    subject: str
    state: str
    cure: str = ""
    """Command or advice that fixes it."""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Check libraries, keys, servers, weights, memory and the sandbox.

    Prints the names of API keys, never their values. The exit code is 1 only if no model is available.
    """
    sections = {
        "This machine": machine(),
        "Libraries": libraries(),
        "Keys and settings": settings(os.environ),
        "Local servers": servers(),
        "Weights": weights(),
    }
    sections |= {entry.name: entry.load()() for entry in entry_points(group=ENTRY_POINTS)}
    discovered, problem = _discover()
    if as_json:
        _print_json(sections, discovered, problem)
    else:
        _print_sections(sections, discovered)
    if problem:
        console.fail(f"no model is available: {problem.removeprefix('no model is available: ')}")
        raise typer.Exit(exit_codes.FAILURE)


def _discover() -> tuple[DiscoveredPool | None, str]:
    """Returns the discovered pool, or the reason why there is none."""
    try:
        return discover(), ""
    except ConfigError as error:
        return None, str(error)


def _print_json(sections: Mapping[str, Iterator[Finding]], discovered: DiscoveredPool | None, problem: str) -> None:
    content = {
        "sections": {title: [finding._asdict() for finding in findings] for title, findings in sections.items()},
        "workers": {name: worker.model.name for name, worker in discovered.pool.items()} if discovered else {},
        "reasons": discovered.reasons if discovered else [],
        "problem": problem or None,
    }
    console.write_json(json.dumps(content, indent=2, ensure_ascii=False))


def _print_sections(sections: Mapping[str, Iterator[Finding]], discovered: DiscoveredPool | None) -> None:
    out = console.stdout()
    for title, findings in sections.items():
        out.print(Text(title, style="bold"))
        out.print(_findings_table(findings))
        out.print()
    if discovered:
        out.print(_verdict(discovered))


def _findings_table(findings: Iterator[Finding]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for finding in findings:
        mark = Text("✓", style="green") if finding.good else Text("·", style="dim")
        state = Text(console.one_line(finding.state), style="" if finding.good else "dim")
        if finding.cure:
            state.append(f"  {finding.cure}", style="cyan not dim")
        table.add_row(mark, Text(finding.subject), state)
    return table


def _verdict(discovered: DiscoveredPool) -> Group:
    workers = ", ".join(f"{name} ({worker.model.name})" for name, worker in discovered.pool.items())
    lines = [*discovered.reasons, f"workers: {workers}"]
    details = Padding(Text("\n".join(console.one_line(line) for line in lines)), (0, 0, 0, 2))
    return Group(Text("Current configuration", style="bold"), details)


def machine() -> Iterator[Finding]:
    """Checks versions, cores, memory and the cache folder."""
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding(True, "rl-conductor", version("rl-conductor"))
    yield Finding(True, "Python", python)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding(True, "cores", str(cores))
    memory = _memory()
    if memory is not None:
        yield Finding(memory > 2e9, "memory", megabytes(memory), "" if memory > 2e9 else "too little for local models")
    if is_importable("platformdirs"):
        # Imported here because it needs the `local` or the `bench` extra.
        from rl_conductor._internal.paths import cache_folder  # noqa: PLC0415

        folder = cache_folder()
        is_usable = _can_write(folder)
        cure = "" if is_usable else "can't be written: set RL_CONDUCTOR_CACHE to another folder"
        yield Finding(is_usable, "cache", str(folder), cure)


def _can_write(folder: Path) -> bool:
    """Whether files can be written into `folder`, which is created when it is first used."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if os.path.exists(parent))  # noqa: PTH110
    return os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)  # noqa: PTH112


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return None


def libraries() -> Iterator[Finding]:
    """Checks for the libraries that adapters need, without importing them."""
    for name, (extra, purpose) in LIBRARIES.items():
        try:
            yield Finding(True, name, f"{version(name)}, for {purpose}")
        except PackageNotFoundError:
            yield Finding(False, name, f"for {purpose}:", f"pip install 'rl-conductor[{extra}]'")


def settings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Lists the API keys that are set, and the values of other variables."""
    for key in KEYS:
        is_set = bool(environ.get(key))
        yield Finding(is_set, key, "set" if is_set else "not set")
    for key in OTHER_KEYS:
        if environ.get(key):
            yield Finding(True, key, "set")
    for name in (*ADDRESSES, *PATHS):
        if environ.get(name):
            yield Finding(True, name, redact_url(environ[name]) if name in ADDRESSES else environ[name])


def servers() -> Iterator[Finding]:
    """Lists the models of servers on the usual local ports."""
    for address in SERVERS:
        names = list_server_models(address)
        subject = ", ".join(names) if names else "no response"
        yield Finding(bool(names), address, subject)


def weights() -> Iterator[Finding]:
    """Lists the pinned weights and whether they are downloaded."""
    if not is_importable("xllamacpp"):
        yield Finding(False, "none", "local models need:", "pip install 'rl-conductor[local]'")
        return
    # Imported here because it needs the `local` extra, which may be missing.
    from rl_conductor.models.llamacpp.weights import PINNED, cached  # noqa: PLC0415

    for name, entry in PINNED.items():
        is_cached = cached(name) is not None
        cure = "" if is_cached else f"rl-conductor models fetch {name}"
        yield Finding(is_cached, name, megabytes(entry.size) + ("" if is_cached else " to download:"), cure)
