"""The audit record in the store: one record per run, one chain for all processes, and detection of changes."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from core.runs import plan, pool_of
from rl_conductor import Conductor, ScriptedModel
from rl_conductor.calls.budget import Amount
from rl_conductor.trace.trace import Trace
from rl_conductor_server.store import NewRun, Store
from rl_conductor_server.store.audit import Chain
from rl_conductor_server.store.database import open_database
from server.conftest import Serve

BODY = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say the secret word."}]}
TWO_STEPS = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))


async def run_two_steps(run: str) -> Trace:
    conductor = Conductor(ScriptedModel(TWO_STEPS), pool_of(a="from \0 a", b="from b"))
    return await conductor.run("Say something.", run_id=run)


def new_id() -> str:
    return f"run-{secrets.token_hex(8)}"


def begin_one(store: Store, run: str) -> None:
    store.begin_run(NewRun(id=run, key="red", digest="d", api="chat", model="m", created=time.time()))


async def finish_one(store: Store, run: str) -> None:
    """Store a finished run."""
    begin_one(store, run)
    trace = await run_two_steps(run)
    store.finish_run(run, trace, "done", charged=Amount.of(trace.usage))
    await store.write_queue.flush()


async def read(store: Store) -> tuple[Chain, list[dict[str, Any]]]:
    chain = Chain()
    return chain, [json.loads(line) async for line in store.audit_lines(chain)]


async def test_every_finished_run_has_a_record(store: Store) -> None:
    before, _ = await read(store)
    first, second = new_id(), new_id()
    await finish_one(store, first)
    await finish_one(store, second)
    begin_one(store, new_id())
    chain, records = await read(store)
    assert chain.broken is None
    assert [record["run"] for record in records[before.records :]] == [first, second]
    last = records[-1]
    assert (last["key"], last["api"], last["model"], last["status"]) == ("red", "chat", "m", "done")
    assert last["trace"] == await store.get_trace_digest(second)
    assert before.head in chain.heads | {before.head}


async def test_processes_that_share_a_store_share_one_chain(store: Store, url: str) -> None:
    before, _ = await read(store)
    stores = [store, await Store.open(url), await Store.open(url)]
    runs = [new_id() for _ in range(12)]
    await asyncio.gather(*(finish_one(stores[number % 3], run) for number, run in enumerate(runs)))
    chain, records = await read(store)
    assert chain.broken is None
    assert {record["run"] for record in records[before.records :]} == set(runs)
    for other in stores[1:]:
        await other.aclose()


async def test_a_record_is_kept_when_its_run_is_deleted(store: Store) -> None:
    run = new_id()
    await finish_one(store, run)
    await store.prune(before=time.time() + 1e6)
    chain, records = await read(store)
    assert chain.broken is None
    assert records[-1]["run"] == run
    assert await store.get_trace_digest(run) is None


async def test_a_resumed_run_has_a_record_for_each_end(store: Store) -> None:
    run = new_id()
    new = NewRun(id=run, key=run, idempotency_key="order-7", digest="d", api="chat", model="m", created=time.time())
    trace = await run_two_steps(run)
    for status in ("failed", "done"):
        await store.claim(new)
        store.finish_run(run, trace, status, charged=Amount.of(trace.usage))
        await store.write_queue.flush()
    chain, records = await read(store)
    assert chain.broken is None
    assert [record["status"] for record in records if record["run"] == run] == ["failed", "done"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE audit_records SET line = replace(line, 'red', 'blu') WHERE sequence = 2", "record 2 was changed"),
        ("UPDATE audit_records SET line = replace(line, 'red', 'blu') WHERE sequence = 3", "record 3 was changed"),
        ("DELETE FROM audit_records WHERE sequence = 2", "record 2 is missing or out of place"),
        ("DELETE FROM audit_records WHERE sequence = 1", "record 1 is missing or out of place"),
        ("UPDATE audit_records SET sequence = -sequence", "record 1 is missing or out of place"),
    ],
)
async def test_a_change_in_the_database_is_detected_now_and_later(tmp_path: Path, change: str, message: str) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    store = await Store.open(url)
    for number in range(3):
        await finish_one(store, f"run-{number}")
    engine = await open_database(url)
    async with engine.begin() as connection:
        await connection.execute(text(change))
    await engine.dispose()
    for _ in range(2):
        assert message in str((await read(store))[0].broken)
        await finish_one(store, new_id())
    await store.aclose()


async def test_a_server_records_answers_without_their_text(serve: Serve) -> None:
    at = await serve()
    reply = await at.http.post("/v1/chat/completions", json=BODY)
    await at.http.post("/v1/responses", json={"model": "conductor-mini", "input": "Say it.", "store": False})
    await at.service.store.write_queue.flush()
    chain, (first, second) = await read(at.service.store)
    assert chain.broken is None
    assert first["run"] == reply.headers["x-conductor-run"]
    assert (first["key"], first["status"], second["api"]) == ("local", "done", "responses")
    assert "secret" not in json.dumps(first)
