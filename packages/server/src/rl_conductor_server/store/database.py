"""Opens a database by its URL and migrates its tables to the current schema."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rl_conductor.errors import ConfigError

log = logging.getLogger("rl_conductor_server.store")

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
}
MIGRATION_LOCK = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": "SELECT pg_advisory_xact_lock(7206316)",
}
"""Keeps processes that start at the same time from migrating at the same time."""
SQLITE_PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=10000", "foreign_keys=ON", "secure_delete=ON")
"""Settings of each connection; with `secure_delete`, the space of deleted rows is overwritten."""
WRITE_LOCK = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": (
        "SELECT pg_advisory_xact_lock(7206317), set_config('idle_in_transaction_session_timeout', '10s', true)"
    ),
}
"""Lets one process write at a time; a process that stalls in its transaction loses the lock after 10 seconds."""
READ_ONLY = "25006"
"""Postgres's SQLSTATE of a database that takes no writes, such as a standby, or a hosted one whose disk is full."""
TCP_TIMEOUTS = {
    "connect_timeout": 10,
    "tcp_user_timeout": 15_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
"""Options of libpq: by default, a connection to a Postgres that vanished without a word is kept for many minutes."""
ADDITIVE_REVISION = re.compile(r"\d{4}")
"""Ids of migrations that only add, so that older releases can go on with the tables; others must have another form."""
MIGRATIONS = Path(__file__).parent / "migrations"
INVALID_PORT = re.compile(r"(://(?:\[[^]]*]|[^/:[]*)):(?!\d+(?:/|$))[^/]*")
"""Text in the place of a URL's port: it may be a password, if the host was left out."""


class StoreUnreachableError(ConfigError):
    """A database server does not answer; it may be starting."""


class StoreMissingError(ConfigError):
    """A database has no tables of a store, or there is no database."""


async def open_database(url: str, *, create: bool = True) -> AsyncEngine:
    """Opens and migrates the database at `url`, such as `sqlite:///runs.db` or `postgres://user@host/name`.

    Without `create`, a database that is no store is left as it is.

    Raises:
        StoreMissingError: it is no store, and `create` is false.
        ConfigError: the URL is invalid, a driver is missing, or the database does not answer (`StoreUnreachableError`).
    """
    address = _parse_url(url)
    engine = _create_async_engine(address)
    try:
        if create:
            _create_file(address)
        else:
            await _check_exists(engine, address, url)
        async with engine.begin() as connection:
            await connection.run_sync(_migrate)
    except StoreMissingError:
        await engine.dispose()
        raise
    except CommandError as error:
        await engine.dispose()
        raise ConfigError(
            f"the store at {redact_url(url)} was created by a newer release of rl-conductor; upgrade this one ({error})"
        ) from error
    except (SQLAlchemyError, OSError) as error:
        await engine.dispose()
        is_server = address.drivername != DRIVERS["sqlite"]
        kind = StoreUnreachableError if is_server and isinstance(error, OperationalError | OSError) else ConfigError
        advice = "" if is_server else _folder_advice(Path(str(address.database)).parent)
        raise kind(f"can't open the store at {redact_url(url)}: {reason_of(error)}{advice}") from error
    return engine


def _folder_advice(folder: Path) -> str:
    """Says what to do if SQLite, which keeps a journal beside its file even for reading, can't write to the folder."""
    if not folder.is_dir() or os.access(folder, os.W_OK):
        return ""
    return (
        f"; SQLite has to write to {str(folder)!r}, also for reading: run the command as the user of the server, or "
        "copy the file to another folder"
    )


def reason_of(error: Exception) -> str:
    """Returns the first line of a database's error, such as that the disk is full; the others may quote rows."""
    return str(getattr(error, "orig", None) or error).partition("\n")[0]


def open_writer(url: str) -> Engine:
    """Opens a database that `open_database` has migrated, for the thread that writes."""
    address = _parse_url(url)
    if address.drivername == DRIVERS["sqlite"]:
        engine = create_engine(address.set(drivername="sqlite"), hide_parameters=True)
        event.listen(engine, "connect", _configure_sqlite_writer)
    else:
        options = _connect_args(address)
        engine = create_engine(address, connect_args=options, pool_pre_ping=True, pool_size=1, hide_parameters=True)
        event.listen(engine, "handle_error", _reconnect_if_read_only, retval=True)
    event.listen(engine, "begin", _acquire_write_lock)
    return engine


def _parse_url(url: str) -> URL:
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):  # ValueError: the port is not a number
        address = None
    if address is None or address.drivername not in DRIVERS:
        raise ConfigError(
            f"the store URL {redact_url(url)} is not valid; write sqlite:///FILE or postgres://USER:PASSWORD@HOST/NAME"
        )
    if address.drivername == "sqlite" and address.database in (None, "", ":memory:"):
        raise ConfigError(f"the store URL {url!r} names no file; write sqlite:///FILE")
    return address.set(drivername=DRIVERS[address.drivername])


def redact_url(url: str) -> str:
    """Removes everything from `url` that may be a password."""
    url = url.partition("?")[0]
    scheme_and_user, at, host = url.rpartition("@")
    return f"{scheme_and_user.partition('://')[0]}://...@{host}" if at else INVALID_PORT.sub(r"\1:...", url)


def _create_async_engine(address: URL) -> AsyncEngine:
    try:
        engine = create_async_engine(
            address,
            connect_args=_connect_args(address),
            pool_pre_ping=not address.drivername.startswith("sqlite"),
            hide_parameters=True,  # errors are logged, and must not quote conversations
        )
    except ImportError as missing:
        raise ConfigError(
            "the driver of this database is not installed: pip install 'rl-conductor-server[postgres]'"
        ) from missing
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", _configure_sqlite)
    return engine


def _connect_args(address: URL) -> dict[str, Any]:
    """Returns the options of `TCP_TIMEOUTS` that the URL does not set, and prepares no statements.

    A pooler such as PgBouncer may give each transaction another session, in which the name of a prepared statement
    stands for one of another process.
    """
    if address.drivername == DRIVERS["sqlite"]:
        return {}
    timeouts = {name: value for name, value in TCP_TIMEOUTS.items() if name not in address.query}
    return {"prepare_threshold": None, **timeouts}


def _create_file(address: URL) -> None:
    """Creates the file of a new SQLite database, readable only by its owner: it will hold conversations."""
    if address.drivername == DRIVERS["sqlite"]:
        os.close(os.open(str(address.database), os.O_RDWR | os.O_CREAT, 0o600))


async def _check_exists(engine: AsyncEngine, address: URL, url: str) -> None:
    if address.drivername == DRIVERS["sqlite"]:
        exists = await asyncio.to_thread(_is_store_file, Path(str(address.database)))
    else:
        async with engine.connect() as connection:
            exists = await connection.run_sync(_current_revision) is not None
    if not exists:
        raise StoreMissingError(f"there is no store at {redact_url(url)}")


def _is_store_file(path: Path) -> bool:
    """Returns whether a file has a store, without changing it as a connection of the engine does."""
    if not path.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE name = 'alembic_version'").fetchall()
    except sqlite3.Error:  # opening it says what is wrong
        return True
    return bool(tables)


def _current_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _configure_sqlite(connection: Any, _: object) -> None:
    cursor: sqlite3.Cursor = connection.cursor()
    for pragma in SQLITE_PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _configure_sqlite_writer(connection: Any, record: object) -> None:
    connection.isolation_level = None  # else the driver would begin transactions itself, and too late
    _configure_sqlite(connection, record)


def _acquire_write_lock(connection: Connection) -> None:
    """Begins a transaction as the only writer of all processes: transactions that share rows could deadlock."""
    connection.exec_driver_sql(WRITE_LOCK[connection.dialect.name])


def _reconnect_if_read_only(context: ExceptionContext) -> OperationalError | None:
    """Treats a database that takes no writes like one that does not answer: the next connection may find the primary.

    By itself, it is an `InternalError`, as of a write that would always fail.
    """
    error = context.original_exception
    if getattr(error, "sqlstate", None) != READ_ONLY:
        return None
    context.is_disconnect = True
    return OperationalError(context.statement, None, error)


def _migrate(connection: Connection) -> None:
    """Upgrades the tables to this release's schema, unless a newer release has added to it."""
    connection.execute(text(MIGRATION_LOCK[connection.dialect.name]))
    current, newest = _current_revision(connection), _newest_revision(MIGRATIONS)
    if current == newest:
        return
    if current is not None and ADDITIVE_REVISION.fullmatch(current) and current > newest:
        log.warning(
            "the store has the schema %s of a newer release; this one, of %s, leaves it as it is", current, newest
        )
        return
    config = _alembic_config(MIGRATIONS)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@cache
def _newest_revision(migrations: Path) -> str:
    """Returns the schema of this release, which is read only once, for that executes the modules of all migrations."""
    newest = ScriptDirectory.from_config(_alembic_config(migrations)).get_current_head()
    assert newest is not None
    return newest


def _alembic_config(migrations: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations))
    return config
