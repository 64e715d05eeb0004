"""The write-behind queue: failing writes, transactions, backpressure, and an unavailable database."""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import OperationalError

from core.runs import SOON, Gated, plan, pool_of
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.events import Event, StepFinished, WorkflowPlanned
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Usage
from rl_conductor_server.store import NewRun, Store, StoreUnavailableError, write_behind
from rl_conductor_server.store.audit import Chain
from rl_conductor_server.store.runs.run_writer import FinishRun
from server.conftest import Serve, until

BODY: Any = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}
IDEMPOTENT = {"idempotency-key": "order-7"}


def new_run(run: str, name: str | None = None) -> NewRun:
    return NewRun(id=run, key="red", idempotency_key=name, digest="d", api="chat", model="m", created=time.time())


async def run_two_steps() -> tuple[Trace, list[Event]]:
    """Run two steps and return the trace and the events."""
    events: list[Event] = []
    planner = ScriptedModel(plan((0, "Draft it.", []), (1, "Say it.", ["all"])))
    trace = await Conductor(planner, pool_of(a="from a", b="from b")).run("Say something.", on_event=events.append)
    return trace, events


def write_all(store: Store, run: str, trace: Trace, events: list[Event]) -> None:
    """Queue all writes of a run."""
    store.begin_run(new_run(run))
    for each in events:
        if isinstance(each, WorkflowPlanned | StepFinished):
            store.save_progress(run, each, Usage(calls=1), Amount(tokens=1))
    store.finish_run(run, trace, "done", charged=Amount(tokens=3))


@asynccontextmanager
async def blocked_queue(store: Store) -> AsyncGenerator[threading.Event, None]:
    """Block the queue in a transaction until the event is set or the block ends."""
    began, release = threading.Event(), threading.Event()

    def wait(_: Connection) -> None:
        began.set()
        release.wait(60)

    store.write_queue.add(wait)
    try:
        await until(began.is_set)
        yield release
    finally:
        release.set()


# ------------------------------------------------------------------------------------- writes that fail


def overflow(connection: Connection) -> None:
    connection.execute(text("INSERT INTO sign_ins (digest, expires) VALUES ('a', :huge)"), {"huge": 2**70})


def lone_surrogate(connection: Connection) -> None:
    connection.execute(text("INSERT INTO sign_ins (digest, expires) VALUES (:half, 0)"), {"half": "\ud83d"})


def no_value(connection: Connection) -> None:
    connection.execute(text("INSERT INTO sign_ins (digest, expires) VALUES (NULL, 0)"))


def bug(_: Connection) -> None:
    raise RuntimeError("a bug")


@pytest.mark.parametrize("fail", [overflow, lone_surrogate, no_value, bug])
async def test_a_failing_write_is_lost_alone_and_is_logged_and_counted(
    url: str, caplog: pytest.LogCaptureFixture, fail: Callable[[Connection], None]
) -> None:
    lost: list[None] = []
    store = await Store.open(url, on_lost_write=lambda: lost.append(None))
    await store.prune(before=time.time() + 1e6)
    trace, events = await run_two_steps()
    chain = Chain()
    before = [line async for line in store.audit_lines(chain)]
    for number in range(3):
        write_all(store, f"write-{number}", trace, events)
    store.write_queue.add(fail)
    for number in range(3, 6):
        write_all(store, f"write-{number}", trace, events)
    assert [row.status for row in await store.list_runs()] == ["done"] * 6
    assert len(lost) == (0 if "postgres" in url and fail is overflow else 1)
    assert ("1 write to the store is lost" in caplog.text) == bool(lost)
    after = [line async for line in store.audit_lines(Chain())]
    assert len(after) == len(before) + 6
    await store.aclose()


async def test_a_caller_that_waits_for_a_failing_write_gets_its_error(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.begin_run(new_run("write-1"))
    with pytest.raises(RuntimeError, match="a bug"):
        await store.write_queue.execute(bug)
    assert await store.get_run("write-1")
    assert "lost" not in caplog.text


# --------------------------------------------------------------------------------------- transactions


async def test_writes_of_many_runs_share_statements(store: Store) -> None:
    trace, events = await run_two_steps()
    statements: list[str] = []
    async with blocked_queue(store):
        for number in range(30):
            write_all(store, f"write-{number}", trace, events)
        event.listen(
            store.write_queue._engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
        )
    assert [row.status for row in await store.list_runs()] == ["done"] * 30
    assert len(statements) < 40


async def test_a_transaction_is_limited_in_size_and_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "MAX_BATCH_SIZE", 4)
    commits: list[object] = []
    event.listen(store.write_queue._engine, "commit", commits.append)
    for _ in range(12):
        store.write_queue.add(lambda _: None)
    await store.write_queue.flush()
    assert len(commits) >= 3
    monkeypatch.setattr(write_behind, "MAX_TRANSACTION_SECONDS", 0.0)
    commits.clear()
    for _ in range(4):
        store.write_queue.add(lambda _: None)
    await store.write_queue.flush()
    assert len(commits) >= 4


async def test_leases_are_renewed_before_the_writes_that_wait(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "MAX_TRANSACTION_SECONDS", 0.0)
    order = list[str]()

    def record_renewal(*arguments: Any) -> None:
        if "UPDATE runs SET heartbeat" in arguments[2]:
            order.append("renewal")

    event.listen(store.write_queue._engine, "before_cursor_execute", record_renewal)
    async with blocked_queue(store) as release:
        for _ in range(3):
            store.write_queue.add(lambda _: order.append("write"))
        renewal = asyncio.create_task(store.renew_leases(["run-1"]))
        await asyncio.sleep(0.1)
        assert store.write_queue.lag > 0.1
        release.set()
        await renewal
    await store.write_queue.flush()
    assert order == ["renewal", "write", "write", "write"]


async def test_heartbeats_claims_and_progress_do_not_block_each_other(
    store: Store, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = await Store.open(url)
    trace, events = await run_two_steps()
    stores = (store, other)
    names = [f"write-{number}" for number in range(40)]
    for number, run in enumerate(names):
        stores[number % 2].begin_run(new_run(run))

    async def beat(shared: Store) -> None:
        for _ in range(10):
            await shared.renew_leases(random.sample(names, len(names)))

    async def claim(shared: Store) -> None:
        for number in range(10):
            await shared.claim(new_run(f"named-{id(shared)}-{number}", name=f"order-{number}"))

    async def report(shared: Store) -> None:
        for run in random.sample(names, len(names)):
            write_all(shared, run, trace, events)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(each) for each in stores for work in (beat, claim, report)))
    await other.aclose()
    rows = await store.list_runs(limit=100)
    assert sorted(row.status for row in rows) == ["done"] * 40 + ["running"] * 10
    assert not [entry for entry in caplog.records if entry.levelno >= logging.WARNING]


async def test_a_claim_is_undone_if_its_caller_was_cancelled_during_the_commit(store: Store, url: str) -> None:
    began, release = threading.Event(), threading.Event()

    def wait(_: Connection) -> None:
        began.set()
        release.wait(60)

    event.listen(store.write_queue._engine, "commit", wait)
    claim_task = asyncio.create_task(store.claim(new_run("write-1", "order-7")))
    await until(began.is_set)
    claim_task.cancel()
    await asyncio.gather(claim_task, return_exceptions=True)
    release.set()
    async with asyncio.timeout(SOON):
        while (row := await store.get_run("write-1")) is None or row.status == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    other = await Store.open(url)
    assert (await other.claim(new_run("write-2", "order-7"))).outcome == "resumed"
    await other.aclose()


async def test_a_claim_is_dropped_if_its_caller_is_cancelled_before_the_commit(store: Store) -> None:
    async with blocked_queue(store):
        claim_task = asyncio.create_task(store.claim(new_run("write-1", "order-7")))
        await until(lambda: bool(store.write_queue._pending))
        claim_task.cancel()
        await asyncio.gather(claim_task, return_exceptions=True)
    assert await store.get_run("write-1") is None


# --------------------------------------------------------------------------------------- backpressure


@pytest.mark.parametrize("status", [200, 502])
async def test_requests_wait_while_the_write_queue_lags(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(write_behind, "MAX_LAG", 0.0)
    at = await serve({"a": "from a" if status == 200 else (lambda _: "")})
    store = at.service.store
    async with blocked_queue(store) as release:
        request = asyncio.create_task(at.http.post("/v1/chat/completions", json=BODY))
        await until(lambda: bool(list(at.service.runs.active_ids)))
        assert not request.done()
        release.set()
        reply = await request
    assert reply.status_code == status
    row = await store.get_run(reply.headers["x-conductor-run"])
    assert row is not None
    assert row.status == ("done" if status == 200 else "failed")


async def test_an_answer_waits_until_its_run_is_stored_if_the_write_queue_lags(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_behind, "MAX_LAG", 3600.0)
    opened = asyncio.Event()
    a = Gated("from a", lambda _: opened.wait())
    at = await serve({"a": a})
    store = at.service.store
    async with blocked_queue(store) as release:
        request = asyncio.create_task(at.http.post("/v1/chat/completions", json=BODY))
        await a.asked.wait()
        monkeypatch.setattr(write_behind, "MAX_LAG", 0.0)
        opened.set()
        await until(lambda: any(isinstance(entry.write, FinishRun) for entry in store.write_queue._pending))
        assert list(at.service.runs.active_ids)
        assert not request.done()
        release.set()
        reply = await request
    assert reply.status_code == 200
    assert [row.status for row in await store.list_runs()] == ["done"]


async def test_a_request_that_can_not_be_stored_is_refused_and_can_be_retried(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = await serve()
    monkeypatch.setattr(write_behind, "COMMIT_TIMEOUT", 0.3)
    monkeypatch.setattr(write_behind, "MAX_LAG", 0.0)
    locked = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    locked.execute("BEGIN IMMEDIATE")
    refused = await at.http.post("/v1/chat/completions", json=BODY, headers=IDEMPOTENT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_away")
    assert refused.headers["x-should-retry"] == "true"
    at.service.store.write_queue.add(lambda _: None)
    other = await at.http.post("/v1/chat/completions", json=BODY)
    assert other.status_code == 503
    await until(lambda: at.service.store.write_queue.lag > 0.3)
    ready = await at.http.get("/readyz")  # a database that can be read only, such as one on a full disk
    assert (ready.status_code, ready.json()["error"]["code"]) == (503, "store_away")
    locked.execute("ROLLBACK")
    locked.close()
    monkeypatch.setattr(write_behind, "COMMIT_TIMEOUT", SOON)
    assert (await at.http.post("/v1/chat/completions", json=BODY, headers=IDEMPOTENT)).status_code == 200
    assert [row.status for row in await at.service.store.list_runs()] == ["done"]
    assert (await at.http.get("/readyz")).status_code == 200


async def test_writes_are_kept_while_the_database_is_unavailable(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(write_behind, "RETRY_DELAYS", (0.0, 0.0))
    unavailable = threading.Event()
    unavailable.set()
    refused: list[None] = []

    def fail_to_begin(connection: Connection) -> None:
        if unavailable.is_set():
            refused.append(None)
            raise OperationalError("BEGIN", {}, ConnectionError("gone"))

    event.listen(store.write_queue._engine, "begin", fail_to_begin)
    store.begin_run(new_run("write-1"))
    await until(lambda: len(refused) > 10)
    monkeypatch.setattr(write_behind, "COMMIT_TIMEOUT", 0.05)
    with pytest.raises(StoreUnavailableError, match=r"(did|has) not answer"):
        await store.write_queue.flush()
    unavailable.clear()
    monkeypatch.setattr(write_behind, "COMMIT_TIMEOUT", SOON)
    await store.write_queue.flush()
    assert await store.get_run("write-1")
    assert "lost" not in caplog.text
    assert "the store is unavailable (gone); retrying" in caplog.text


@contextmanager
def full_disk(store: Store) -> Iterator[None]:
    """A database that has no space to grow: SQLite's by a limit, Postgres's by its error."""
    engine, size = store.write_queue._engine, 1  # a limit below the size of the database is that size

    def limit_size(connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {size}")

    if engine.dialect.name == "postgresql":
        with failing_disk(store, psycopg.errors.DiskFull("no space left on device")):
            yield
        return
    event.listen(engine, "begin", limit_size)
    yield
    size = 2**30


@contextmanager
def failing_disk(store: Store, error: Exception) -> Iterator[None]:
    """A database whose disk takes no new rows."""
    engine = store.write_queue._engine

    def fail_to_insert(*arguments: Any) -> None:
        if arguments[2].startswith("INSERT"):
            raise OperationalError(arguments[2], {}, error)

    event.listen(engine, "before_cursor_execute", fail_to_insert)
    yield
    event.remove(engine, "before_cursor_execute", fail_to_insert)


def disk_error() -> Exception:
    """SQLite's error of a disk that became read-only, or whose quota is used up."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
    return error


async def store_during(
    store: Store, outage: AbstractContextManager[None], lost: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes a row, which is tried often during the outage and stored after it."""
    monkeypatch.setattr(write_behind, "RETRY_DELAYS", (0.0, 0.0))
    tries = list[None]()

    def insert(connection: Connection) -> None:
        tries.append(None)
        statement = "INSERT INTO sign_ins (digest, expires, identity) VALUES ('a', 0, :long)"
        connection.execute(text(statement), {"long": "x" * 100_000})

    with outage:
        store.write_queue.add(insert)
        await until(lambda: len(tries) > 10 or bool(lost))
    await store.write_queue.flush()
    assert not lost
    await store.aclose()


async def test_writes_are_kept_while_the_disk_is_full(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = list[None]()
    store = await Store.open(url, on_lost_write=lambda: lost.append(None))
    await store_during(store, full_disk(store), lost, monkeypatch)


@pytest.mark.parametrize("error", [disk_error(), psycopg.errors.IoError("could not extend file")])
async def test_writes_are_kept_while_the_disk_has_errors(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = list[None]()
    store = await Store.open(f"sqlite:///{tmp_path / 'runs.db'}", on_lost_write=lambda: lost.append(None))
    await store_during(store, failing_disk(store, error), lost, monkeypatch)


@contextmanager
def read_only(url: str) -> Iterator[None]:
    """A Postgres that takes no writes for a while, as hosted ones do before their disk is full."""
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        connection.execute(f"SELECT pg_terminate_backend(pid) {others}")
        yield
        connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


async def test_writes_are_kept_while_postgres_is_read_only(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = list[None]()
    store = await Store.open(postgres, on_lost_write=lambda: lost.append(None))
    await store_during(store, read_only(postgres), lost, monkeypatch)


async def test_a_caller_learns_that_the_store_is_unavailable_not_what_the_database_said(store: Store) -> None:
    def fail(_: Connection) -> None:
        raise OperationalError("UPDATE runs", {}, RuntimeError("deadlock"))

    with pytest.raises(StoreUnavailableError, match="could not write"):
        await store.write_queue.execute(fail)


async def test_closing_a_store_logs_the_writes_that_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(write_behind, "COMMIT_TIMEOUT", 0.1)
    store = await Store.open(f"sqlite:///{tmp_path / 'runs.db'}")
    async with blocked_queue(store):
        store.begin_run(new_run("write-1"))
        closing = asyncio.create_task(store.aclose())
        await until(lambda: "1 write to the store is lost (BeginRun write-1)" in caplog.text)
    await closing
