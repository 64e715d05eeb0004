"""The audit record in the store: a record a run, one chain over all processes, and what is changed in it is found."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from core.runs import plan, pool_of
from rl_conductor import Conductor, ScriptedModel
from rl_conductor.calls.budget import Amount
from rl_conductor.trace.audit import Chain
from rl_conductor.trace.trace import Trace
from rl_conductor_server.store import NewRun, Store
from rl_conductor_server.store.database import connected
from server.conftest import Serve

BODY = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say the secret word."}]}
TWO = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("postgres") if request.param == "postgres" else f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
async def store(url: str) -> AsyncGenerator[Store, None]:
    opened = await Store.open(url)
    yield opened
    await opened.aclose()


async def ran(run: str) -> Trace:
    made = Conductor(ScriptedModel(TWO), pool_of(a="from \0 a", b="from b"))
    return await made.run("Say something.", run_id=run)


def new_id() -> str:
    return f"run-{secrets.token_hex(8)}"


def begin(store: Store, run: str) -> None:
    store.begin(NewRun(id=run, key="red", digest="d", api="chat", model="m", created=time.time()))


async def keep(store: Store, run: str) -> None:
    """A run that is over."""
    begin(store, run)
    trace = await ran(run)
    store.finish(run, trace, "done", charged=Amount.of(trace.usage))
    await store.journal.flush()


async def read(store: Store) -> tuple[Chain, list[dict[str, Any]]]:
    chain = Chain()
    return chain, [json.loads(line) async for line in store.records(chain)]


async def test_every_run_that_is_over_has_a_record(store: Store) -> None:
    before, _ = await read(store)
    first, second = new_id(), new_id()
    await keep(store, first)
    await keep(store, second)
    begin(store, new_id())
    chain, records = await read(store)
    assert chain.broken is None
    assert [one["run"] for one in records[before.records :]] == [first, second]
    last = records[-1]
    assert (last["key"], last["api"], last["model"], last["status"]) == ("red", "chat", "m", "done")
    assert last["trace"] == await store.trace_digest(second)
    assert before.head in chain.heads | {before.head}


async def test_processes_that_share_a_store_make_one_chain(store: Store, url: str) -> None:
    before, _ = await read(store)
    others = [store, await Store.open(url), await Store.open(url)]
    runs = [new_id() for _ in range(12)]
    await asyncio.gather(*(keep(others[number % 3], run) for number, run in enumerate(runs)))
    chain, records = await read(store)
    assert chain.broken is None
    assert {one["run"] for one in records[before.records :]} == set(runs)
    for other in others[1:]:
        await other.aclose()


async def test_the_record_outlives_the_run(store: Store) -> None:
    run = new_id()
    await keep(store, run)
    await store.prune(before=time.time() + 1e6)
    chain, records = await read(store)
    assert chain.broken is None
    assert records[-1]["run"] == run
    assert await store.trace_digest(run) is None


async def test_a_run_that_is_gone_on_with_has_a_record_for_each_end(store: Store) -> None:
    run = new_id()
    new = NewRun(id=run, key=run, idempotency="order-7", digest="d", api="chat", model="m", created=time.time())
    trace = await ran(run)
    for status in ("failed", "done"):
        await store.claim(new)
        store.finish(run, trace, status, charged=Amount.of(trace.usage))
        await store.journal.flush()
    chain, records = await read(store)
    assert chain.broken is None
    assert [one["status"] for one in records if one["run"] == run] == ["failed", "done"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE records SET body = replace(body, 'red', 'blu') WHERE sequence = 2", "record 2 was changed"),
        ("UPDATE records SET body = replace(body, 'red', 'blu') WHERE sequence = 3", "record 3 was changed"),
        ("DELETE FROM records WHERE sequence = 2", "record 2 is missing or out of place"),
        ("DELETE FROM records WHERE sequence = 1", "record 1 is missing or out of place"),
        ("UPDATE records SET sequence = -sequence", "record 1 is missing or out of place"),
    ],
)
async def test_what_is_changed_in_the_database_is_found_and_stays_found(tmp_path: Path, change: str, says: str) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    store = await Store.open(url)
    for number in range(3):
        await keep(store, f"run-{number}")
    engine = await connected(url)
    async with engine.begin() as connection:
        await connection.execute(text(change))
    await engine.dispose()
    for _ in range(2):
        assert says in str((await read(store))[0].broken)
        await keep(store, new_id())
    await store.aclose()


async def test_a_server_records_what_it_answered_without_a_word_of_it(serve: Serve) -> None:
    at = await serve()
    reply = await at.http.post("/v1/chat/completions", json=BODY)
    await at.http.post("/v1/responses", json={"model": "conductor-mini", "input": "Say it.", "store": False})
    await at.service.store.journal.flush()
    chain, (first, second) = await read(at.service.store)
    assert chain.broken is None
    assert first["run"] == reply.headers["x-conductor-run"]
    assert (first["key"], first["status"], second["api"]) == ("local", "done", "responses")
    assert "secret" not in json.dumps(first)
