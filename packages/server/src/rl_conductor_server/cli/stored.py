"""Where a server keeps its runs, for the commands that only look at them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from rl_conductor.errors import ConfigError
from rl_conductor_server.settings import StoreEntry, read_settings
from rl_conductor_server.store import RunRow, Store

T = TypeVar("T")

WHERE = "Where runs are kept"
SQLITE = "sqlite:///"

StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="sqlite:///FILE or postgres://...", rich_help_panel=WHERE),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="The server's settings file, which names the store.", rich_help_panel=WHERE
    ),
]


def read(url: str | None, config: Path | None, work: Callable[[Store], Awaitable[T]]) -> T:
    """What `work` finds in the store that the options name, or else in the one that `serve` makes without them.

    Raises:
        ConfigError: there is no such store.
    """
    entry = read_settings(config).store if config else StoreEntry()
    return asyncio.run(_opened(_existing(url or entry.url), work))


async def _opened(url: str, work: Callable[[Store], Awaitable[T]]) -> T:
    store = await Store.open(url)
    try:
        return await work(store)
    finally:
        await store.aclose()


def _existing(url: str) -> str:
    """`url` itself, unless it is a file that is not there: looking must not make one."""
    file = url.removeprefix(SQLITE)
    if url.startswith(SQLITE) and not Path(file).is_file():
        raise ConfigError(
            f"no runs are kept in {file!r}: 'rl-conductor serve' keeps them where it is started; name another place "
            f"with --store {SQLITE}FILE, or the server's settings with --config"
        )
    return url


async def find_run(store: Store, run: str) -> RunRow:
    """The run of this id.

    Raises:
        ConfigError: there is none.
    """
    found = await store.run(run)
    if found is None:
        raise ConfigError(f"no run {run!r} is kept there; 'rl-conductor runs' lists those that are")
    return found
