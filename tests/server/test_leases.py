"""Expired leases: runs of dead servers end once, are charged, get an audit record, and respect `store: false`."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncGenerator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import update

from core.runs import SOON, Gated, forever, plan, pool_of
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.errors import BadRequestError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.events import Event, StepFinished, WorkflowPlanned
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Price, Usage
from rl_conductor_server.store import BudgetPeriod, NewRun, Store
from rl_conductor_server.store.audit import Chain, Record, parse_record
from rl_conductor_server.store.tables import runs
from server.conftest import Serve, until
from server.upstream import Vendor, process, settings_file, vendor

PLAN = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))
CHARGED = Amount(usd=Decimal("0.05"), tokens=700)
USED = Usage(calls=2, cost=Decimal("0.01"), input_tokens=30)
CENT = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))
BODY: Any = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}
SECRETS = ("the word of the question", "the word of the plan", "the word of the draft", "the word of the answer")


@pytest.fixture
async def store(url: str) -> AsyncGenerator[Store, None]:
    """An empty store whose leases expire immediately."""
    opened = await Store.open(url, lease=-1.0)
    yield opened
    await opened.aclose()


async def run_two_steps() -> tuple[Trace, list[Event]]:
    """Run two steps and return the trace and the events."""
    events: list[Event] = []
    pool = pool_of(a=ScriptedModel("from a", price=CENT), b=ScriptedModel("from b", price=CENT))
    trace = await Conductor(ScriptedModel(PLAN), pool).run("Say something.", on_event=events.append)
    return trace, events


def new_run(run: str, name: str | None = None) -> NewRun:
    values = {"id": run, "key": f"key of {run}", "idempotency_key": name, "digest": "d", "api": "chat", "model": "m"}
    return NewRun.model_validate(values | {"created": time.time(), "question": "Say something."})


async def crash(url: str, new: NewRun) -> Trace:
    """Store a run of a process that dies after the first step; return the trace of the complete run."""
    trace, events = await run_two_steps()
    dead = await Store.open(url)
    if new.idempotency_key is None:
        dead.begin_run(new)
    else:
        await dead.claim(new)
    for event in [event for event in events if isinstance(event, WorkflowPlanned | StepFinished)][:2]:
        dead.save_progress(new.id, event, USED, CHARGED)
    await dead.aclose()
    return trace


async def records_of(store: Store, run: str) -> list[Record]:
    chain = Chain()
    parsed = [parse_record(line) async for line in store.audit_lines(chain)]
    records = [record for record in parsed if isinstance(record, Record)]
    assert chain.broken is None
    return [record for record in records if record.run == run]


def new_id() -> str:
    return f"run-{secrets.token_hex(8)}"


async def test_a_run_of_a_dead_process_fails_is_charged_and_gets_an_audit_record(store: Store, url: str) -> None:
    run = new_id()
    trace = await crash(url, new_run(run))
    assert await store.end_expired_runs([]) == [run]
    row = await store.get_run(run)
    assert row is not None
    assert (row.status, row.usage.cost, row.question) == ("failed", Decimal("0.01"), "Say something.")
    assert row.error is not None
    assert "the server that ran it is gone" in row.error
    assert row.seconds is not None
    assert (await store.read_budget(BudgetPeriod(f"key of {run}", 0, None, None))).charged_elsewhere == CHARGED
    (record,) = await records_of(store, run)
    assert (record.status, record.trace, record.answer, record.used.usd) == ("failed", None, None, Decimal("0.01"))
    assert [step.worker for each in record.rounds for step in each.steps] == ["a"]
    assert (await store.get_rounds(run))[0].results == trace.rounds[0].results[:1]
    spending = await store.spending.list_usage("worker", since=0, before=9e9, width=10**9)
    assert {row.name: row.usage.calls for row in spending} == {"": 1, "a": 1}


async def test_servers_that_share_a_store_end_an_expired_run_once(store: Store, url: str) -> None:
    runs = [new_id() for _ in range(8)]
    for run in runs:
        await crash(url, new_run(run))
    stores = [store, *[await Store.open(url, lease=-1.0) for _ in range(3)]]
    ended = await asyncio.gather(*(each.end_expired_runs([]) for each in stores))
    assert sorted(run for batch in ended for run in batch) == sorted(runs)
    for run in runs:
        assert len(await records_of(store, run)) == 1
    for other in stores[1:]:
        await other.aclose()


@pytest.mark.parametrize("notices", ["before it ends runs", "at its heartbeat", "at a retry"])
async def test_a_jump_of_the_databases_clock_ends_no_runs_of_living_processes(url: str, notices: str) -> None:
    here, there = await Store.open(url, lease=10.0), await Store.open(url, lease=10.0)
    run = new_id()
    await there.claim(new_run(run, "order-7"))
    expire = update(runs).where(runs.c.id == run).values(heartbeat=0)
    await here.write_queue.execute(lambda connection: connection.execute(expire))
    here._clock.set(here.now() - 3600, read_at=time.monotonic())  # its time has jumped by an hour since then
    if notices == "at its heartbeat":
        await here.renew_leases([])
    elif notices == "at a retry":
        assert (await here.claim(new_run(run, "order-7").model_copy(update={"id": new_id()}))).outcome == "elsewhere"
    assert await here.end_expired_runs([]) == []
    await there.renew_leases([run])
    await here.renew_leases([])
    here._contact._began = float("-inf")  # later
    assert await here.end_expired_runs([]) == []
    row = await here.get_run(run)
    assert row is not None
    assert row.status == "running"
    await here.aclose()
    await there.aclose()


async def test_runs_with_a_valid_lease_are_not_ended(store: Store, url: str) -> None:
    patient = await Store.open(url, lease=60.0)
    active, lost, foreign = new_id(), new_id(), new_id()
    store.begin_run(new_run(active))
    store.begin_run(new_run(lost))
    await store.write_queue.flush()
    assert await patient.end_expired_runs([]) == []
    assert await store.end_expired_runs([active]) == [lost]
    await crash(url, new_run(foreign))
    assert await patient.end_expired_runs([]) == []
    await patient.aclose()


async def test_an_expired_run_with_an_idempotency_key_is_resumed_when_its_request_is_sent_again(
    store: Store, url: str
) -> None:
    run = new_id()
    trace = await crash(url, new_run(run, "order-7"))
    assert await store.end_expired_runs([]) == [run]
    row = await store.get_run(run)
    assert row is not None
    assert "Idempotency-Key again" in (row.error or "")
    claim = await store.claim(new_run(run, "order-7"))
    assert (claim.id, claim.outcome, claim.charged) == (run, "resumed", CHARGED)
    assert claim.rounds[0].results == trace.rounds[0].results[:1]
    row = await store.get_run(run)
    assert row is not None
    assert (row.status, row.error) == ("running", None)
    store.finish_run(run, trace, "done", charged=CHARGED)
    assert [record.status for record in await records_of(store, run)] in (["failed"], ["failed", "done"])
    assert (await store.claim(new_run(run, "order-7"))).outcome == "done"


async def test_a_run_that_is_resumed_twice_keeps_the_steps_of_both_processes(store: Store, url: str) -> None:
    run = new_id()
    trace, events = await run_two_steps()
    failed = trace.model_copy(update={"rounds": (trace.rounds[0].model_copy(update={"results": ()}),)})
    await store.claim(new_run(run, "order-7"))
    store.finish_run(run, failed, "failed", charged=CHARGED)
    assert (await store.claim(new_run(run, "order-7"))).rounds == failed.rounds
    for event in events:
        if isinstance(event, StepFinished):
            store.save_progress(run, event, USED, CHARGED)
    await store.write_queue.flush()
    successor = await Store.open(url, lease=-1.0)
    assert (await successor.claim(new_run(run, "order-7"))).rounds == trace.rounds
    await successor.aclose()


# -------------------------------------------------------------------------------------- store: false


@pytest.fixture
async def upstream() -> AsyncGenerator[Vendor, None]:
    text = plan((0, f"Draft {SECRETS[1]}.", []), (1, "Draft two.", []), (2, "Join them.", ["all"]))
    async with vendor(planner=text, a=f"here is {SECRETS[2]}", b="two", c=f"here is {SECRETS[3]}") as upstream:
        yield upstream


def stored_bytes(url: str, folder: Path) -> bytes:
    """Return the complete content of a store."""
    if url.startswith("sqlite"):
        return b"".join(file.read_bytes() for file in folder.glob("runs.db*"))
    with psycopg.connect(url) as connection:
        tables = [name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        rows = [connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables]
    return repr(rows).encode()


@pytest.mark.parametrize("store_content", [True, False])
async def test_a_run_of_a_killed_server_ends_and_store_false_leaves_no_content(
    upstream: Vendor, url: str, tmp_path: Path, *, store_content: bool
) -> None:
    config = settings_file(tmp_path, upstream, url)
    options = {"model": "conductor-ultra", "conductor": {"limits": {"rounds": 1}}, "store": store_content}
    question = [{"role": "user", "content": f"Say {SECRETS[0]}."}]
    await clear(url)
    upstream.held.add("c")
    async with process(config) as first, httpx.AsyncClient(base_url=first.url, timeout=60) as http:
        request = asyncio.create_task(http.post("/v1/chat/completions", json=BODY | options | {"messages": question}))
        await until(lambda: upstream.asked["c"] == 1)
        opened = await Store.open(url)
        while not (drafted := [row.id for row in await opened.list_runs(limit=500) if row.usage.calls == 3]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        (run,) = drafted
        await first.end(signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await request
    async with process(config):
        async with asyncio.timeout(SOON):
            while (row := (await opened.list_runs(limit=500))[0]).status == "running":  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert (row.status, row.usage.calls) == ("failed", 3)
    (record,) = await records_of(opened, run)
    assert record.used.input_tokens == 30
    await opened.aclose()
    content = stored_bytes(url, tmp_path)
    assert [word.encode() in content for word in SECRETS[:3]] == [store_content] * 3


async def clear(url: str) -> None:
    store = await Store.open(url)
    await store.prune(before=time.time() + 1e6)
    await store.aclose()


async def test_store_false_leaves_no_content_of_failed_or_cancelled_runs(serve: Serve, tmp_path: Path) -> None:
    failing = BadRequestError(f"can't take {SECRETS[1]}", model="a", status=400)
    at = await serve({"a": [f"here is {SECRETS[2]}", failing], "b": Gated("never", forever)})
    body = BODY | {"messages": [{"role": "user", "content": f"Say {SECRETS[0]}."}], "store": False}
    only_a = {"conductor": {"policy": {"allow": ["a"]}}}
    assert (await at.http.post("/v1/chat/completions", json=body | only_a)).status_code == 200
    assert (await at.http.post("/v1/chat/completions", json=body | only_a)).status_code == 400
    only_b = {"conductor": {"policy": {"allow": ["b"]}, "limits": {"seconds": 30}}}
    with pytest.raises(httpx.ReadTimeout):
        await at.http.post("/v1/chat/completions", json=body | only_b, timeout=0.5)
    await until(lambda: not list(at.service.runs.active_ids))
    rows = await at.service.store.list_runs()
    assert sorted(row.status for row in rows) == ["cancelled", "done", "failed"]
    assert {row.error for row in rows if row.status == "failed"} == {
        "the run failed; its error is not stored because the request has store: false"
    }
    content = stored_bytes("sqlite", tmp_path)
    assert not [word for word in SECRETS if word.encode() in content]
