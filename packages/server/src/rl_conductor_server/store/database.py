"""Opens a database by its URL and brings its tables up to date."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rl_conductor.errors import ConfigError

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
}
ONE_AT_A_TIME = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": "SELECT pg_advisory_xact_lock(7206316)",
}
"""What keeps two processes that start at once from both migrating."""
ONE_WRITER = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": (
        "SELECT pg_advisory_xact_lock(7206317), set_config('idle_in_transaction_session_timeout', '10s', true)"
    ),
}
"""What lets one process write at a time; one that stands still in the midst of it is cut off."""
NO_PORT = re.compile(r"(://(?:\[[^]]*]|[^/:[]*)):(?!\d+(?:/|$))[^/]*")
"""What stands in a URL where its port should: a password, if the host was left out."""


async def connected(url: str) -> AsyncEngine:
    """The database at `url`, such as `sqlite:///runs.db` or `postgres://user@host/name`, with all tables.

    Raises:
        ConfigError: the URL is wrong, a driver is missing, or nothing answers there.
    """
    address = _address(url)
    engine = _engine(address)
    try:
        _make_file(address)
        async with engine.begin() as connection:
            await connection.run_sync(_migrate)
    except CommandError as error:
        await engine.dispose()
        raise ConfigError(f"the store at {shown(url)} was made by a newer version: {error}") from error
    except (SQLAlchemyError, OSError) as error:
        await engine.dispose()
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        raise ConfigError(f"can't open the store at {shown(url)}: {reason}") from error
    return engine


def connected_writer(url: str) -> Engine:
    """The database at `url`, which `connected` has opened before, for the one thread that writes."""
    address = _address(url)
    if address.drivername == DRIVERS["sqlite"]:
        engine = create_engine(address.set(drivername="sqlite"), hide_parameters=True)
        event.listen(engine, "connect", _set_up_sqlite_writer)
    else:
        engine = create_engine(address, pool_pre_ping=True, pool_size=1, hide_parameters=True)
    event.listen(engine, "begin", _exclude_other_writers)
    return engine


def _address(url: str) -> URL:
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        address = None
    if address is None or address.drivername not in DRIVERS:
        raise ConfigError(f"no store at {shown(url)}: write sqlite:///FILE or postgres://USER:PASSWORD@HOST/NAME")
    if address.drivername == "sqlite" and address.database in (None, "", ":memory:"):
        raise ConfigError(f"{url!r} names no file, and a store outlives its process: write sqlite:///FILE")
    return address.set(drivername=DRIVERS[address.drivername])


def shown(url: str) -> str:
    """`url` without what may be a password."""
    url = url.partition("?")[0]
    before, at, host = url.rpartition("@")
    return f"{before.partition('://')[0]}://...@{host}" if at else NO_PORT.sub(r"\1:...", url)


def _engine(address: URL) -> AsyncEngine:
    try:
        engine = create_async_engine(
            address,
            pool_pre_ping=not address.drivername.startswith("sqlite"),
            hide_parameters=True,  # errors end up in logs, and what was asked must not
        )
    except ImportError as missing:
        raise ConfigError("this store needs a driver: pip install 'rl-conductor-server[postgres]'") from missing
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", _set_up_sqlite)
    return engine


def _make_file(address: URL) -> None:
    """The file of a new SQLite database, for its owner only: what was asked is nobody else's to read."""
    if address.drivername == DRIVERS["sqlite"]:
        os.close(os.open(str(address.database), os.O_RDWR | os.O_CREAT, 0o600))


def _set_up_sqlite(connection: Any, _: object) -> None:
    cursor: sqlite3.Cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=10000", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _set_up_sqlite_writer(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver would begin transactions itself, and later than they must
    _set_up_sqlite(connection, record)


def _exclude_other_writers(connection: Connection) -> None:
    """Begin as the only one of all processes that writes: transactions that share rows could block one another."""
    connection.exec_driver_sql(ONE_WRITER[connection.dialect.name])


def _migrate(connection: Connection) -> None:
    connection.execute(text(ONE_AT_A_TIME[connection.dialect.name]))
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    command.upgrade(config, "head")
