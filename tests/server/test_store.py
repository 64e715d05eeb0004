from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from core.runs import plan, pool_of
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.audit import Chain
from rl_conductor.trace.events import Event, StepFinished, WorkflowPlanned
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Price, Usage
from rl_conductor_server.store import NewRun, Search, Store
from rl_conductor_server.store.database import connected
from rl_conductor_server.store.queries import By
from rl_conductor_server.store.tables import metadata

PLAN = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))
CHARGED = Amount(usd=Decimal("0.05"), tokens=700)
"""More than the run used: a call of it broke off."""
CENT = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("postgres") if request.param == "postgres" else f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
async def store(url: str) -> AsyncGenerator[Store, None]:
    """An empty store."""
    opened = await Store.open(url)
    await opened.prune(before=time.time() + 1e6)
    opened.journal.add(lambda kept: kept.execute(text("DELETE FROM forgotten")))
    await opened.journal.flush()
    yield opened
    await opened.aclose()


async def ran() -> tuple[Trace, list[Event]]:
    """A run of two steps, and its events."""
    pool = pool_of(a=ScriptedModel("from \0 a", price=CENT), b=ScriptedModel("from b", price=CENT))
    events: list[Event] = []
    trace = await Conductor(ScriptedModel(PLAN), pool).run("Say something.", on_event=events.append)
    return trace, events


def new_run(name: str | None = "order-7", digest: str = "d", run: str = "run-1") -> NewRun:
    return NewRun(
        id=run,
        key="red",
        idempotency=name,
        digest=digest,
        api="chat",
        model="m",
        created=time.time(),
        labels={"a": "b"},
        question="Say something.",
    )


def record(store: Store, events: list[Event]) -> None:
    for event in events:
        if isinstance(event, WorkflowPlanned | StepFinished):
            store.record("run-1", event, Usage(calls=1, cost=Decimal("0.01")), CHARGED)


async def test_a_run_belongs_to_whoever_claims_it_first(store: Store, url: str) -> None:
    other = await Store.open(url)
    claims = await asyncio.gather(*(one.claim(new_run(run=f"run-{i}")) for i, one in enumerate((store, other) * 5)))
    assert sorted(claim.outcome for claim in claims) == ["elsewhere"] * 9 + ["new"]
    assert len({claim.id for claim in claims}) == 1
    assert (await other.claim(new_run(digest="another"))).outcome == "mismatch"
    await other.aclose()


async def test_what_a_dead_process_left_is_taken_over_once_with_all_it_had_done(store: Store, url: str) -> None:
    trace, events = await ran()
    await store.claim(new_run())
    record(store, events[:-1])
    await store.journal.flush()
    heirs = [await Store.open(url, lease=-1.0), await Store.open(url, lease=-1.0)]
    claims = await asyncio.gather(*(heir.claim(new_run()) for heir in heirs))
    resumed = [claim for claim in claims if claim.outcome == "resumed"]
    assert resumed
    assert resumed[0].rounds == trace.rounds
    for heir in heirs:
        await heir.aclose()


async def test_a_process_that_says_it_lives_keeps_its_runs(store: Store, url: str) -> None:
    await store.claim(new_run())
    heir = await Store.open(url, lease=1.5)
    for _ in range(4):
        await asyncio.sleep(0.5)
        await store.beat(["run-1"])
    assert (await heir.claim(new_run())).outcome == "elsewhere"
    await asyncio.sleep(1.6)
    assert (await heir.claim(new_run())).outcome == "resumed"
    await heir.aclose()


async def test_who_lost_a_run_can_not_end_it(store: Store, url: str) -> None:
    trace, _ = await ran()
    await store.claim(new_run())
    heir = await Store.open(url, lease=-1.0)
    await heir.claim(new_run())
    store.finish("run-1", trace, "done", charged=CHARGED)
    await store.journal.flush()
    assert await heir.trace("run-1") is None
    await heir.aclose()


async def test_who_lost_a_run_can_not_undo_what_its_heir_has_done(store: Store, url: str) -> None:
    trace, events = await ran()
    await store.claim(new_run())
    heir = await Store.open(url, lease=-1.0)
    await heir.claim(new_run())
    record(heir, events[:-1])
    await heir.journal.flush()
    for event in events:
        if isinstance(event, StepFinished):
            store.record("run-1", event.model_copy(update={"round": 1}), Usage(calls=99), CHARGED)
    store.finish("run-1", trace, "failed", charged=CHARGED)
    await store.journal.flush()
    row = await heir.run("run-1")
    assert row is not None
    assert (row.status, row.usage.calls) == ("running", 1)
    assert await heir.so_far("run-1") == trace.rounds
    assert [line async for line in heir.records(Chain()) if '"run-1"' in line] == []
    await heir.aclose()


async def test_a_run_that_is_done_is_read_as_it_was(store: Store) -> None:
    trace, events = await ran()
    await store.claim(new_run())
    record(store, events)
    store.finish("run-1", trace, "done", charged=CHARGED)
    await store.journal.flush()
    claim = await store.claim(new_run())
    assert (claim.outcome, claim.trace) == ("done", trace)
    assert await store.trace("run-1", key="red") == trace
    assert await store.trace("run-1", key="blue") is None
    (row,) = await store.runs(Search(key="red"))
    assert (row.status, row.usage.cost, row.usage.calls) == ("done", Decimal("0.02"), 3)
    assert row.labels == {"a": "b"}
    assert (await store.spent("red", since=0)).cost == Decimal("0.02")
    assert (await store.spent("red", since=time.time() + 9)).cost == 0
    assert await store.charged_elsewhere("red", since=0) == Amount()


async def test_a_run_that_failed_is_gone_on_with_from_its_trace(store: Store) -> None:
    trace, _ = await ran()
    await store.claim(new_run())
    store.finish("run-1", trace, "failed", charged=CHARGED)
    await store.journal.flush()
    claim = await store.claim(new_run())
    assert (claim.outcome, claim.rounds, claim.charged) == ("resumed", trace.rounds, CHARGED)


async def test_what_another_release_kept_in_its_own_form_is_refused_in_words(store: Store) -> None:
    trace, events = await ran()
    await store.claim(new_run())
    store.finish("run-1", trace, "failed", charged=CHARGED)
    store.begin(new_run("order-8", run="run-2"))
    store.record("run-2", next(event for event in events if isinstance(event, WorkflowPlanned)), Usage(), CHARGED)
    store.journal.add(lambda kept: kept.execute(text("UPDATE runs SET trace = replace(trace, 'source', 'origin')")))
    store.journal.add(lambda kept: kept.execute(text("UPDATE steps SET body = replace(body, 'source', 'origin')")))
    for look in (store.trace("run-1"), store.claim(new_run()), store.so_far("run-2")):
        with pytest.raises(ConfigError, match=r"'run-.' was kept by another release .*source: Field required"):
            await look


async def test_old_runs_are_forgotten_and_living_ones_are_not(store: Store) -> None:
    trace, events = await ran()
    await store.claim(new_run())
    record(store, events[:-1])
    await store.claim(new_run("order-8", run="run-2"))
    store.finish("run-2", trace, "done", charged=CHARGED)
    await store.journal.flush()
    assert await store.prune(before=time.time() - 60) == 0
    assert await store.prune(before=time.time()) >= 1
    assert await store.run("run-2") is None


async def test_what_forgotten_runs_used_is_still_counted(store: Store, url: str) -> None:
    trace, _ = await ran()
    other = await Store.open(url)
    today = time.time() // 86_400 * 86_400
    for number, owner in enumerate((store, other, other)):
        owner.begin(new_run(None, run=f"run-{number}").model_copy(update={"created": today + 1}))
        owner.finish(f"run-{number}", trace, "done", charged=CHARGED)
        await owner.journal.flush()
        assert await other.prune(before=time.time() + 1e5) == 1
    assert (await store.spent("red", since=today)).cost == 3 * trace.usage.cost
    assert await store.charged_elsewhere("red", since=today) == CHARGED + CHARGED
    assert await other.charged_elsewhere("red", since=0) == CHARGED
    assert (await store.spent("red", since=today + 86_400)).calls == 0
    assert (await store.spent("blue", since=0)).calls == 0
    await other.aclose()


async def test_runs_without_a_name_never_meet(store: Store) -> None:
    for number in range(2):
        store.begin(new_run(None, run=f"run-{number}"))
    await store.journal.flush()
    assert {row.id for row in await store.runs()} == {"run-0", "run-1"}
    assert len(await store.runs(most=1)) == 1
    assert await store.runs(Search(before=0)) == []


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ({}, True),
        ({"text": "SAY some"}, True),
        ({"text": "from B"}, True),
        ({"text": "100%"}, False),
        ({"worker": "a"}, True),
        ({"worker": ""}, True),
        ({"worker": "c"}, False),
        ({"model": "m"}, True),
        ({"model": "mini"}, False),
        ({"key": "red", "status": "done"}, True),
        ({"key": "blue"}, False),
        ({"status": "failed"}, False),
        ({"since": 0.0, "before": 9e9}, True),
        ({"since": 9e9}, False),
        ({"before": 0.0}, False),
    ],
)
async def test_a_search_finds_what_each_of_its_fields_means(
    store: Store, search: dict[str, Any], *, found: bool
) -> None:
    trace, _ = await ran()
    store.begin(new_run(None))
    store.finish("run-1", trace, "done", charged=CHARGED)
    await store.journal.flush()
    assert [row.id for row in await store.runs(Search(**search))] == ["run-1"] * found


async def test_a_model_is_found_by_its_name_whatever_is_behind_it(store: Store) -> None:
    for number, model in enumerate(("mini-2026-11-21", "mini-2027-01-01", "mini-house-2026-11-21")):
        store.begin(new_run(None, run=f"run-{number}").model_copy(update={"model": model}))
    await store.journal.flush()
    assert {row.id for row in await store.runs(Search(model="mini"))} == {"run-0", "run-1"}
    assert [row.id for row in await store.runs(Search(model="mini-2027-01-01"))] == ["run-1"]


async def test_spending_is_told_apart_by_worker_model_and_key(store: Store) -> None:
    trace, _ = await ran()
    for number in range(2):
        store.begin(new_run(None, run=f"run-{number}"))
        store.finish(f"run-{number}", trace, "done", charged=CHARGED)
    await store.journal.flush()
    now = time.time()
    spent = {by: await store.spending(by, since=now - 60, before=now + 60, width=10**9) for by in get_args(By)}
    cents = {
        by: {one.name: (one.usage.calls, int(one.usage.cost * 100)) for one in found} for by, found in spent.items()
    }
    assert cents == {"worker": {"": (2, 0), "a": (2, 2), "b": (2, 2)}, "model": {"m": (6, 4)}, "key": {"red": (6, 4)}}
    assert {one.start for found in spent.values() for one in found} == {10**9}
    assert await store.spending("worker", since=0, before=now - 60, width=60) == []
    assert await store.workers() == ["", "a", "b"]


async def test_a_run_that_ends_twice_is_shared_out_once(store: Store) -> None:
    trace, _ = await ran()
    await store.claim(new_run())
    store.finish("run-1", trace, "failed", charged=CHARGED)
    store.finish("run-1", trace, "done", charged=CHARGED)
    await store.journal.flush()
    spent = await store.spending("worker", since=0, before=9e9, width=10**9)
    assert sum(one.usage.calls for one in spent) == 3


async def test_a_browser_may_come_until_its_time_is_over(store: Store) -> None:
    await store.sessions.admit("old", until=time.time() - 1)
    await store.sessions.admit("new", until=time.time() + 60)
    assert [await store.sessions.is_admitted(name) for name in ("old", "new", "other")] == [False, True, False]
    await store.prune(before=0)
    await store.sessions.dismiss("new")
    assert not await store.sessions.is_admitted("new")


async def test_the_migrations_make_the_tables_that_the_code_knows(url: str) -> None:
    engine = await connected(url)

    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), metadata))

    async with engine.connect() as connection:
        found = await connection.run_sync(differences)
    await engine.dispose()
    assert found == []


OPEN = """
import asyncio, sys
from rl_conductor_server.store import Store

async def main():
    store = await Store.open(sys.argv[1])
    await store.ping()
    await store.aclose()

asyncio.run(main())
"""


async def test_processes_that_start_at_once_do_not_both_migrate(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'fresh.db'}"
    started = [await asyncio.create_subprocess_exec(sys.executable, "-c", OPEN, url) for _ in range(3)]
    assert [await one.wait() for one in started] == [0, 0, 0]


async def test_what_was_just_told_is_known_at_once(store: Store) -> None:
    trace, events = await ran()
    store.begin(new_run(None))
    record(store, events)
    assert await store.so_far("run-1") == trace.rounds
    store.finish("run-1", trace, "done", charged=CHARGED)
    assert await store.trace("run-1") == trace
    assert await store.so_far("run-1") == ()


async def test_writes_that_a_database_refuses_are_logged_and_do_not_stop_the_others(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        store.journal.add(lambda connection: connection.execute(text("INSERT INTO sessions VALUES (NULL, 0)")))
        await store.journal.flush()
    store.begin(new_run(None))
    await store.journal.flush()
    assert "1 write to the store is lost" in caplog.text
    assert len(await store.runs()) == 1


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://root:secret@localhost/x", "write sqlite:///FILE or postgres://"),
        ("nonsense", "no store at nonsense"),
        ("sqlite:////no/such/folder/x.db", "can't open the store"),
        ("postgres://me:secret@127.0.0.1:1/x", "can't open the store"),
        ("postgres://127.0.0.1:1/x?user=me&password=secret", "can't open the store"),
    ],
)
async def test_a_store_that_can_not_be_opened_is_named_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        await Store.open(url)
    assert "secret" not in str(caught.value)


async def test_a_store_that_a_newer_version_made_is_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    await (await Store.open(url)).aclose()
    engine = await connected(url)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await engine.dispose()
    with pytest.raises(ConfigError, match="was made by a newer version"):
        await Store.open(url)


async def test_a_new_file_of_runs_is_its_owners_only(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    store = await Store.open(url)
    store.begin(new_run(None))
    await store.journal.flush()
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}  # noqa: ASYNC240
    await store.aclose()
