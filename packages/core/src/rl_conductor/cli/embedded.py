"""Announces the embedded models and downloads their weights with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import megabytes
from rl_conductor.cli.output import console
from rl_conductor.conductor import Conductor
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.config.discovery import VENDORS
from rl_conductor.models.endpoints import ENDPOINTS

PREFIX = "embedded:"


def prepare_models(conductor: Conductor, discovered: DiscoveredPool, *, runs: bool = True, quiet: bool = False) -> None:
    """Announces the embedded models, if they are used and `quiet` is not set, and downloads missing weights.

    Raises:
        ConfigError: no source provides the weights.
    """
    if discovered.embedded and not quiet:
        _introduce(discovered, console.stderr())
    models = [planner.model for planner in conductor.planner.planners]
    if runs:
        policy = conductor.policy
        models += [worker.model for worker in conductor.pool.values() if not policy.denial_reason(worker.card)]
    fetch_embedded(model.name for model in models)


def _introduce(discovered: DiscoveredPool, error: Console) -> None:
    console.note(error, "No API key, local server or pool file was found: using the built-in tiny models.")
    table = Table.grid(padding=(0, 2))
    for name, worker in discovered.pool.items():
        roles = "planner and worker" if worker.model is discovered.planner.model else "worker"
        table.add_row(*(Text(cell, style="dim") for cell in (f"  {name}", worker.model.name, roles)))
    error.print(table)
    console.note(error, f"They are often wrong. For better answers, {_better_models_hint()}.")


def _better_models_hint() -> str:
    keys = ", ".join(ENDPOINTS[provider].key_variables[0] for provider in VENDORS)
    return f"set one of {keys}, start a local server (Ollama, vLLM, llama.cpp, LM Studio), or pass --pool FILE"


def fetch_embedded(models: Iterable[str]) -> None:
    """Downloads missing weights of the embedded ones among `models`, and of those inside of others.

    Args:
        models: names such as `openai:gpt-6-sol`, `embedded:NAME` and `coder:embedded:NAME`.

    Raises:
        ConfigError: the name of an embedded model is unknown, or no source provides its weights.
    """
    names = (f":{model}".partition(f":{PREFIX}")[2] for model in models)
    fetch(dict.fromkeys(filter(None, names)))


def fetch(names: Iterable[str]) -> None:
    """Downloads the weights of these models unless they are cached; shows a progress bar in a terminal.

    Raises:
        ConfigError: a name is unknown, or no source provides the weights.
    """
    names_to_fetch = list(names)
    if not names_to_fetch:
        return
    # Imported here because it needs the `local` extra, which vendors' models don't need.
    from rl_conductor.models.llamacpp import weights  # noqa: PLC0415

    missing = [name for name in names_to_fetch if name not in weights.PINNED or weights.cached(name) is None]
    if not missing:
        return
    error = console.stderr()
    with _bars(error) as bars:
        for name in missing:
            size = weights.pinned(name).size
            if not error.is_terminal:
                console.note(error, f"downloading the weights of {name} once: {megabytes(size)}")
            weights.fetch(name, progress=_tick(bars, name, size))


def _bars(error: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=error,
        transient=True,
        expand=True,
        disable=not error.is_terminal,
    )


def _tick(bars: Progress, name: str, size: int) -> Callable[[int, int], None]:
    task = bars.add_task(f"downloading {name}", total=size)
    return lambda received, total: bars.update(task, completed=received, total=total)
