"""What the user is told of the models in this process, and the wait for their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import megabytes
from rl_conductor.cli import console
from rl_conductor.conductor import Conductor
from rl_conductor.config.discovery import VENDORS, Found

PREFIX = "embedded:"


def get_ready(conductor: Conductor, found: Found, *, runs: bool = True) -> None:
    """Say what kind of models these are, if they are the tiny ones, and fetch the weights that are missing.

    Raises:
        ConfigError: the weights are nowhere to be had.
    """
    if found.embedded:
        _introduce(found, console.stderr())
    models = [conductor.planner.model]
    if runs:
        policy = conductor.policy
        models += [worker.model for worker in conductor.pool.values() if not policy.forbidden_because(worker.card)]
    fetch(dict.fromkeys(model.name.removeprefix(PREFIX) for model in models if model.name.startswith(PREFIX)))


def _introduce(found: Found, error: Console) -> None:
    console.note(error, "No key, no local server and no pool file was found: tiny models in this process do it all.")
    listed = Table.grid(padding=(0, 2))
    for name, worker in found.pool.items():
        does = "plans and works" if worker.model is found.planner.model else "works"
        listed.add_row(*(Text(cell, style="dim") for cell in (f"  {name}", worker.model.name, does)))
    error.print(listed)
    console.note(error, f"They are often wrong. For better ones {better()}.")


def better() -> str:
    """How to bring better models than the embedded ones."""
    keys = ", ".join(vendor.keys[0] for vendor in VENDORS.values())
    return f"set one of {keys}, start a local server (Ollama, vLLM, llama.cpp, LM Studio), or give --pool FILE"


def fetch(names: Iterable[str]) -> None:
    """Bring the weights of these names to this machine, with a bar in a terminal.

    Raises:
        ConfigError: no such weights, or they are nowhere to be had.
    """
    wanted = list(names)
    if not wanted:
        return
    # Imported here because it needs the `local` extra, which those who use vendors' models can do without.
    from rl_conductor.models.llamacpp import weights  # noqa: PLC0415

    missing = [name for name in wanted if name not in weights.PINNED or weights.cached(name) is None]
    if not missing:
        return
    error = console.stderr()
    with _bars(error) as bars:
        for name in missing:
            size = weights.pinned(name).size
            if not error.is_terminal:
                console.note(error, f"fetching the weights of {name}: {megabytes(size)}, once")
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
    task = bars.add_task(f"fetching {name}, once", total=size)
    return lambda done, total: bars.update(task, completed=done, total=total)
