"""Runs of servers that died: each ends once, charged and on the audit record, and leaves only what was to be stored."""

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

from core.runs import Gated, forever, plan, pool_of
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.errors import BadRequestError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.audit import Chain, Record
from rl_conductor.trace.events import Event, StepFinished, WorkflowPlanned
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Price, Usage
from rl_conductor_server.store import NewRun, RunRow, Store
from server.conftest import Serve, until
from server.upstream import Vendor, process, settings_file, vendor

PLAN = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))
CHARGED = Amount(usd=Decimal("0.05"), tokens=700)
USED = Usage(calls=2, cost=Decimal("0.01"), input_tokens=30)
CENT = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))
BODY: Any = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}
SECRETS = ("the word of the question", "the word of the plan", "the word of the draft", "the word of the answer")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("postgres") if request.param == "postgres" else f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
async def store(url: str) -> AsyncGenerator[Store, None]:
    """An empty store, for which a process that is silent is dead at once."""
    opened = await Store.open(url, lease=-1.0)
    await opened.prune(before=time.time() + 1e6)
    yield opened
    await opened.aclose()


async def ran() -> tuple[Trace, list[Event]]:
    """A run of two steps, and its events."""
    events: list[Event] = []
    pool = pool_of(a=ScriptedModel("from a", price=CENT), b=ScriptedModel("from b", price=CENT))
    trace = await Conductor(ScriptedModel(PLAN), pool).run("Say something.", on_event=events.append)
    return trace, events


def new_run(run: str, name: str | None = None) -> NewRun:
    made = {"id": run, "key": f"key of {run}", "idempotency": name, "digest": "d", "api": "chat", "model": "m"}
    return NewRun.model_validate(made | {"created": time.time(), "question": "Say something."})


async def leave(url: str, new: NewRun) -> Trace:
    """What a process leaves that dies once the plan and the first step are done; the trace that it would have made."""
    trace, events = await ran()
    dead = await Store.open(url)
    if new.idempotency is None:
        dead.begin(new)
    else:
        await dead.claim(new)
    for one in [event for event in events if isinstance(event, WorkflowPlanned | StepFinished)][:2]:
        dead.record(new.id, one, USED, CHARGED)
    await dead.aclose()
    return trace


async def records_of(store: Store, run: str) -> list[Record]:
    chain = Chain()
    found = [Record.model_validate_json(line) async for line in store.records(chain)]
    assert chain.broken is None
    return [record for record in found if record.run == run]


def new_id() -> str:
    return f"run-{secrets.token_hex(8)}"


async def test_a_run_whose_process_died_ends_as_failed_on_record_and_charged(store: Store, url: str) -> None:
    run = new_id()
    trace = await leave(url, new_run(run))
    assert await store.expire([]) == [run]
    row = await store.run(run)
    assert row is not None
    assert (row.status, row.usage.cost, row.question) == ("failed", Decimal("0.01"), "Say something.")
    assert row.error is not None
    assert "the server that ran it is gone" in row.error
    assert row.seconds is not None
    assert await store.charged_elsewhere(f"key of {run}", since=0) == CHARGED
    (record,) = await records_of(store, run)
    assert (record.status, record.trace, record.answer, record.used.usd) == ("failed", None, None, Decimal("0.01"))
    assert [step.worker for one in record.rounds for step in one.steps] == ["a"]
    assert (await store.so_far(run))[0].results == trace.rounds[0].results[:1]
    spent = await store.spending("worker", since=0, before=9e9, width=10**9)
    assert {one.name: one.usage.calls for one in spent} == {"": 1, "a": 1}


async def test_servers_that_share_a_store_end_it_only_once(store: Store, url: str) -> None:
    runs = [new_id() for _ in range(8)]
    for run in runs:
        await leave(url, new_run(run))
    others = [store, *[await Store.open(url, lease=-1.0) for _ in range(3)]]
    ended = await asyncio.gather(*(one.expire([]) for one in others))
    assert sorted(run for some in ended for run in some) == sorted(runs)
    for run in runs:
        assert len(await records_of(store, run)) == 1
    for other in others[1:]:
        await other.aclose()


async def test_no_living_run_is_ended(store: Store, url: str) -> None:
    patient = await Store.open(url, lease=60.0)
    mine, lost, others = new_id(), new_id(), new_id()
    store.begin(new_run(mine))
    store.begin(new_run(lost))
    await store.journal.flush()
    assert await patient.expire([]) == []
    assert await store.expire([mine]) == [lost]
    await leave(url, new_run(others))
    assert await patient.expire([]) == []
    await patient.aclose()


async def test_a_run_with_a_name_that_was_ended_is_continued_by_whoever_asks_again(store: Store, url: str) -> None:
    run = new_id()
    trace = await leave(url, new_run(run, "order-7"))
    assert await store.expire([]) == [run]
    row = await store.run(run)
    assert row is not None
    assert "Idempotency-Key again" in (row.error or "")
    claim = await store.claim(new_run(run, "order-7"))
    assert (claim.id, claim.outcome, claim.charged, claim.inherited) == (run, "resumed", CHARGED, True)
    assert claim.rounds[0].results == trace.rounds[0].results[:1]
    row = await store.run(run)
    assert row is not None
    assert (row.status, row.error) == ("running", None)
    store.finish(run, trace, "done", charged=CHARGED)
    assert [record.status for record in await records_of(store, run)] in (["failed"], ["failed", "done"])
    assert (await store.claim(new_run(run, "order-7"))).outcome == "done"


async def test_what_a_continued_run_had_done_before_it_failed_outlives_the_process_that_continued_it(
    store: Store, url: str
) -> None:
    run = new_id()
    trace, events = await ran()
    failed = trace.model_copy(update={"rounds": (trace.rounds[0].model_copy(update={"results": ()}),)})
    await store.claim(new_run(run, "order-7"))
    store.finish(run, failed, "failed", charged=CHARGED)
    assert (await store.claim(new_run(run, "order-7"))).rounds == failed.rounds
    for one in events:
        if isinstance(one, StepFinished):
            store.record(run, one, USED, CHARGED)
    await store.journal.flush()
    heir = await Store.open(url, lease=-1.0)
    assert (await heir.claim(new_run(run, "order-7"))).rounds == trace.rounds
    await heir.aclose()


# -------------------------------------------------------------------------------------- store: false


@pytest.fixture
async def upstream() -> AsyncGenerator[Vendor, None]:
    said = plan((0, f"Draft {SECRETS[1]}.", []), (1, "Draft two.", []), (2, "Join them.", ["all"]))
    async with vendor(planner=said, a=f"here is {SECRETS[2]}", b="two", c=f"here is {SECRETS[3]}") as made:
        yield made


def stored_bytes(url: str, folder: Path) -> bytes:
    """Everything that is in a store."""
    if url.startswith("sqlite"):
        return b"".join(file.read_bytes() for file in folder.glob("runs.db*"))
    with psycopg.connect(url) as connection:
        tables = [name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        rows = [connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables]
    return repr(rows).encode()


@pytest.mark.parametrize("keep", [True, False])
async def test_a_run_of_a_killed_server_ends_and_leaves_no_content_if_none_was_to_be_stored(
    upstream: Vendor, url: str, tmp_path: Path, *, keep: bool
) -> None:
    config = settings_file(tmp_path, upstream, url)
    ask = {"model": "conductor-ultra", "conductor": {"limits": {"rounds": 1}}, "store": keep}
    question = [{"role": "user", "content": f"Say {SECRETS[0]}."}]
    await _empty(url)
    upstream.held.add("c")
    async with process(config) as first, httpx.AsyncClient(base_url=first.url, timeout=60) as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=BODY | ask | {"messages": question}))
        await until(lambda: upstream.asked["c"] == 1)
        while not (drafted := [row.id for row in await _rows(url) if row.usage.calls == 3]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        (run,) = drafted
        await first.end(signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await asking
    async with process(config):
        async with asyncio.timeout(30):
            while (row := (await _rows(url))[0]).status == "running":  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert (row.status, row.usage.calls) == ("failed", 3)
    opened = await Store.open(url)
    (record,) = await records_of(opened, run)
    assert record.used.input_tokens == 30
    await opened.aclose()
    content = stored_bytes(url, tmp_path)
    assert [word.encode() in content for word in SECRETS[:3]] == [keep] * 3


async def _rows(url: str) -> list[RunRow]:
    store = await Store.open(url)
    try:
        return list(await store.runs(most=500))
    finally:
        await store.aclose()


async def _empty(url: str) -> None:
    store = await Store.open(url)
    await store.prune(before=time.time() + 1e6)
    await store.aclose()


async def test_a_run_that_fails_or_is_given_up_leaves_no_content_if_none_was_to_be_stored(
    serve: Serve, tmp_path: Path
) -> None:
    failing = BadRequestError(f"can't take {SECRETS[1]}", model="a", status=400)
    at = await serve({"a": [f"here is {SECRETS[2]}", failing], "b": Gated("never", forever)})
    body = BODY | {"messages": [{"role": "user", "content": f"Say {SECRETS[0]}."}], "store": False}
    only = {"conductor": {"policy": {"allow": ["a"]}}}
    assert (await at.http.post("/v1/chat/completions", json=body | only)).status_code == 200
    assert (await at.http.post("/v1/chat/completions", json=body | only)).status_code == 502
    slow = {"conductor": {"policy": {"allow": ["b"]}, "limits": {"seconds": 30}}}
    with pytest.raises(httpx.ReadTimeout):
        await at.http.post("/v1/chat/completions", json=body | slow, timeout=0.5)
    await until(lambda: not list(at.service.runs.living))
    rows = await at.service.store.runs()
    assert sorted(row.status for row in rows) == ["cancelled", "done", "failed"]
    assert {row.error for row in rows if row.status == "failed"} == {
        "it failed; why is not stored, as the request says store: false"
    }
    content = stored_bytes("sqlite", tmp_path)
    assert not [word for word in SECRETS if word.encode() in content]
