"""Options and helpers of the commands that read a server's store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from rl_conductor.errors import ConfigError
from rl_conductor_server.settings import StoreEntry, read_settings
from rl_conductor_server.store import RunRow, Store
from rl_conductor_server.store.database import StoreMissingError

T = TypeVar("T")

PANEL = "Store"
SQLITE = "sqlite:///"

StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="sqlite:///FILE or postgres://...", rich_help_panel=PANEL),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="The server's settings file, which names the store.", rich_help_panel=PANEL
    ),
]


def with_store(
    url: str | None, config: Path | None, work: Callable[[Store], Awaitable[T]], *, create: bool = False
) -> T:
    """Call `work` with the store of the options, by default the one that `serve` uses without settings.

    With `create`, a store that doesn't exist is created.

    Raises:
        ConfigError: there is no such store.
    """
    entry = read_settings(config).store if config else StoreEntry()
    return asyncio.run(_open_and_call(url or entry.url, work, create=create))


async def _open_and_call(url: str, work: Callable[[Store], Awaitable[T]], *, create: bool) -> T:
    try:
        store = await Store.open(url, create=create)
    except StoreMissingError as missing:
        raise ConfigError(
            f"{missing}; name the server's store with --store {SQLITE}FILE or postgres://..., or its settings file "
            "with --config (by default, 'rl-conductor serve' creates its store in its working directory)"
        ) from missing
    async with aclosing(store):
        return await work(store)


async def get_run(store: Store, run: str) -> RunRow:
    """Return the run with this id.

    Raises:
        ConfigError: there is none.
    """
    row = await store.get_run(run)
    if row is None:
        raise ConfigError(f"no run {run!r} in this store; 'rl-conductor runs' lists the runs")
    return row
