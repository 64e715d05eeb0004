"""The one writer of a store: what happens to writes when some fail, when many come, and when the database is away."""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import OperationalError

from core.runs import SOON, Gated, plan, pool_of
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.audit import Chain
from rl_conductor.trace.events import Event, StepFinished, WorkflowPlanned
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Usage
from rl_conductor_server.store import NewRun, Store, StoreAwayError, write_behind
from rl_conductor_server.store.writer import End
from server.conftest import Serve, until

BODY: Any = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}
NAMED = {"idempotency-key": "order-7"}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("postgres") if request.param == "postgres" else f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
async def store(url: str) -> AsyncGenerator[Store, None]:
    """An empty store."""
    opened = await Store.open(url)
    await opened.prune(before=time.time() + 1e6)
    yield opened
    await opened.aclose()


def new_run(run: str, name: str | None = None) -> NewRun:
    return NewRun(id=run, key="red", idempotency=name, digest="d", api="chat", model="m", created=time.time())


async def ran() -> tuple[Trace, list[Event]]:
    """A run of two steps, and its events."""
    events: list[Event] = []
    planner = ScriptedModel(plan((0, "Draft it.", []), (1, "Say it.", ["all"])))
    trace = await Conductor(planner, pool_of(a="from a", b="from b")).run("Say something.", on_event=events.append)
    return trace, events


def write_all(store: Store, run: str, trace: Trace, events: list[Event]) -> None:
    """All that a server writes of a run."""
    store.begin(new_run(run))
    for one in events:
        if isinstance(one, WorkflowPlanned | StepFinished):
            store.record(run, one, Usage(calls=1), Amount(tokens=1))
    store.finish(run, trace, "done", charged=Amount(tokens=3))


@asynccontextmanager
async def held(store: Store) -> AsyncGenerator[threading.Event, None]:
    """The writer stands still in a transaction until the event is set or the block ends."""
    began, release = threading.Event(), threading.Event()

    def wait(_: Connection) -> None:
        began.set()
        release.wait(60)

    store.journal.add(wait)
    try:
        await until(began.is_set)
        yield release
    finally:
        release.set()


# ------------------------------------------------------------------------------------- writes that fail


def overflow(connection: Connection) -> None:
    connection.execute(text("INSERT INTO sessions VALUES ('a', :huge)"), {"huge": 2**70})


def lone_surrogate(connection: Connection) -> None:
    connection.execute(text("INSERT INTO sessions VALUES (:half, 0)"), {"half": "\ud83d"})


def no_value(connection: Connection) -> None:
    connection.execute(text("INSERT INTO sessions VALUES (NULL, 0)"))


def mistake(_: Connection) -> None:
    raise RuntimeError("a mistake of ours")


@pytest.mark.parametrize("fail", [overflow, lone_surrogate, no_value, mistake])
async def test_a_write_that_fails_fails_alone_and_is_logged_and_counted(
    url: str, caplog: pytest.LogCaptureFixture, fail: Callable[[Connection], None]
) -> None:
    lost: list[None] = []
    store = await Store.open(url, on_lost_write=lambda: lost.append(None))
    await store.prune(before=time.time() + 1e6)
    trace, events = await ran()
    chain = Chain()
    before = [line async for line in store.records(chain)]
    for number in range(3):
        write_all(store, f"write-{number}", trace, events)
    store.journal.add(fail)
    for number in range(3, 6):
        write_all(store, f"write-{number}", trace, events)
    assert [row.status for row in await store.runs()] == ["done"] * 6
    assert len(lost) == (0 if "postgres" in url and fail is overflow else 1)
    assert ("1 write to the store is lost" in caplog.text) == bool(lost)
    after = [line async for line in store.records(Chain())]
    assert len(after) == len(before) + 6
    await store.aclose()


async def test_whoever_waits_for_a_write_that_fails_is_told(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.begin(new_run("write-1"))
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        await store.journal.run(mistake)
    assert await store.run("write-1")
    assert "lost" not in caplog.text


# --------------------------------------------------------------------------------------- transactions


async def test_many_runs_share_the_statements_of_one_transaction(store: Store) -> None:
    trace, events = await ran()
    statements: list[str] = []
    async with held(store):
        for number in range(30):
            write_all(store, f"write-{number}", trace, events)
        event.listen(store.journal._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert [row.status for row in await store.runs()] == ["done"] * 30
    assert len(statements) < 40


async def test_a_transaction_is_limited_in_size_and_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "MAX_WRITES", 4)
    commits: list[object] = []
    event.listen(store.journal._engine, "commit", commits.append)
    for _ in range(12):
        store.journal.add(lambda _: None)
    await store.journal.flush()
    assert len(commits) >= 3
    monkeypatch.setattr(write_behind, "MAX_SECONDS", 0.0)
    commits.clear()
    for _ in range(4):
        store.journal.add(lambda _: None)
    await store.journal.flush()
    assert len(commits) >= 4


async def test_heartbeats_claims_and_progress_never_block_one_another(
    store: Store, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = await Store.open(url)
    trace, events = await ran()
    both = (store, other)
    names = [f"write-{number}" for number in range(40)]
    for place, run in enumerate(names):
        both[place % 2].begin(new_run(run))

    async def beat(one: Store) -> None:
        for _ in range(10):
            await one.beat(random.sample(names, len(names)))

    async def claim(one: Store) -> None:
        for number in range(10):
            await one.claim(new_run(f"named-{id(one)}-{number}", name=f"order-{number}"))

    async def report(one: Store) -> None:
        for run in random.sample(names, len(names)):
            write_all(one, run, trace, events)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(one) for one in both for work in (beat, claim, report)))
    await other.aclose()
    rows = await store.runs(most=100)
    assert sorted(row.status for row in rows) == ["done"] * 40 + ["running"] * 10
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


async def test_what_a_caller_claimed_who_has_left_is_free_at_once(store: Store, url: str) -> None:
    began, release = threading.Event(), threading.Event()

    def wait(_: Connection) -> None:
        began.set()
        release.wait(60)

    event.listen(store.journal._engine, "commit", wait)
    claiming = asyncio.create_task(store.claim(new_run("write-1", "order-7")))
    await until(began.is_set)
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    release.set()
    async with asyncio.timeout(SOON):
        while (row := await store.run("write-1")) is None or row.status == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    other = await Store.open(url)
    assert (await other.claim(new_run("write-2", "order-7"))).outcome == "resumed"
    await other.aclose()


async def test_a_claim_whose_caller_leaves_before_it_is_written_is_never_made(store: Store) -> None:
    async with held(store):
        claiming = asyncio.create_task(store.claim(new_run("write-1", "order-7")))
        await until(lambda: bool(store.journal._pending))
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
    assert await store.run("write-1") is None


# --------------------------------------------------------------------------------------- backpressure


@pytest.mark.parametrize("status", [200, 502])
async def test_nobody_is_answered_by_a_server_whose_writer_lags(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(write_behind, "MAX_LAG", 0.0)
    at = await serve({"a": "from a" if status == 200 else (lambda _: "")})
    store = at.service.store
    asked = at.service.runs
    async with held(store) as release:
        asking = asyncio.create_task(at.http.post("/v1/chat/completions", json=BODY))
        await until(lambda: bool(list(asked.living)))
        assert not asking.done()
        release.set()
        reply = await asking
    assert reply.status_code == status
    row = await store.run(reply.headers["x-conductor-run"])
    assert row is not None
    assert row.status == ("done" if status == 200 else "failed")


async def test_an_answer_waits_until_its_run_is_stored_when_the_writer_lags(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_behind, "MAX_LAG", 3600.0)
    opened = asyncio.Event()
    a = Gated("from a", lambda _: opened.wait())
    at = await serve({"a": a})
    store = at.service.store
    async with held(store) as release:
        asking = asyncio.create_task(at.http.post("/v1/chat/completions", json=BODY))
        await a.asked.wait()
        monkeypatch.setattr(write_behind, "MAX_LAG", 0.0)
        opened.set()
        await until(lambda: any(isinstance(entry.write, End) for entry in store.journal._pending))
        assert list(at.service.runs.living)
        assert not asking.done()
        release.set()
        reply = await asking
    assert reply.status_code == 200
    assert [row.status for row in await store.runs()] == ["done"]


async def test_what_can_not_be_stored_is_refused_and_may_be_asked_again(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = await serve()
    monkeypatch.setattr(write_behind, "PATIENCE", 0.3)
    monkeypatch.setattr(write_behind, "MAX_LAG", 0.0)
    locked = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    locked.execute("BEGIN IMMEDIATE")
    refused = await at.http.post("/v1/chat/completions", json=BODY, headers=NAMED)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_away")
    assert refused.headers["x-should-retry"] == "true"
    at.service.store.journal.add(lambda _: None)
    nameless = await at.http.post("/v1/chat/completions", json=BODY)
    assert nameless.status_code == 503
    locked.execute("ROLLBACK")
    locked.close()
    monkeypatch.setattr(write_behind, "PATIENCE", SOON)
    assert (await at.http.post("/v1/chat/completions", json=BODY, headers=NAMED)).status_code == 200
    assert [row.status for row in await at.service.store.runs()] == ["done"]


async def test_writes_are_kept_while_the_database_is_away(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(write_behind, "PAUSES", (0.0, 0.0))
    away = threading.Event()
    away.set()
    refused: list[None] = []

    def gone(connection: Connection) -> None:
        if away.is_set():
            refused.append(None)
            raise OperationalError("BEGIN", {}, ConnectionError("gone"))

    event.listen(store.journal._engine, "begin", gone)
    store.begin(new_run("write-1"))
    await until(lambda: len(refused) > 10)
    monkeypatch.setattr(write_behind, "PATIENCE", 0.05)
    with pytest.raises(StoreAwayError, match="did not answer within"):
        await store.journal.flush()
    away.clear()
    monkeypatch.setattr(write_behind, "PATIENCE", SOON)
    await store.journal.flush()
    assert await store.run("write-1")
    assert "lost" not in caplog.text


async def test_what_is_left_when_a_store_is_closed_without_its_database_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(write_behind, "PATIENCE", 0.1)
    store = await Store.open(f"sqlite:///{tmp_path / 'runs.db'}")
    async with held(store):
        store.begin(new_run("write-1"))
        closing = asyncio.create_task(store.aclose())
        await until(lambda: "1 write to the store is lost (begin of write-1)" in caplog.text)
    await closing
