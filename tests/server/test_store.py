from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, text
from sqlalchemy.event import listen, remove

from core.runs import plan, pool_of
from forks import start_fork
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.events import Event, StepFinished, WorkflowPlanned
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Price, Usage
from rl_conductor_server.store import BudgetPeriod, NewRun, Search, Store, StoredBatch, StoredResponse, StoredTurn
from rl_conductor_server.store.audit import Chain
from rl_conductor_server.store.batches.batches import BatchLimits
from rl_conductor_server.store.batches.models import NewItem
from rl_conductor_server.store.database import open_database
from rl_conductor_server.store.models import SpendingGroup
from rl_conductor_server.store.responses.conversations import Conversation
from rl_conductor_server.store.runs import retention
from rl_conductor_server.store.tables import metadata
from server.conftest import usage_of_key

PLAN = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))
CHARGED = Amount(usd=Decimal("0.05"), tokens=700)
"""More than the usage: a call was interrupted."""
BUDGET = BudgetPeriod("red", start=0, usd=None, tokens=None)
CENT = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))


async def run_two_steps() -> tuple[Trace, list[Event]]:
    """Run two steps and return the trace and the events."""
    pool = pool_of(a=ScriptedModel("from \0 a", price=CENT), b=ScriptedModel("from b", price=CENT))
    events: list[Event] = []
    trace = await Conductor(ScriptedModel(PLAN), pool).run("Say something.", on_event=events.append)
    return trace, events


def new_run(name: str | None = "order-7", digest: str = "d", run: str = "run-1") -> NewRun:
    return NewRun(
        id=run,
        key="red",
        idempotency_key=name,
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
            store.save_progress("run-1", event, Usage(calls=1, cost=Decimal("0.01")), CHARGED)


async def test_a_store_in_a_folder_that_is_not_writable_is_refused_with_advice(tmp_path: Path) -> None:
    file = tmp_path / "store" / "runs.db"
    file.parent.mkdir()
    await (await Store.open(f"sqlite:///{file}")).aclose()
    file.parent.chmod(0o500)
    try:
        if os.access(file.parent, os.W_OK):
            pytest.skip("root may write to any folder")
        with pytest.raises(ConfigError, match="run the command as the user of the server, or copy the file"):
            await Store.open(f"sqlite:///{file}", create=False)
    finally:
        file.parent.chmod(0o700)


async def test_a_process_that_only_reads_writes_nothing(store: Store, url: str) -> None:
    statements = list[str]()

    def record(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    listen(Engine, "before_cursor_execute", record)
    try:
        reader = await Store.open(url, create=False)
        await reader.list_runs()
        await reader.aclose()
    finally:
        remove(Engine, "before_cursor_execute", record)
    assert statements
    assert [each for each in statements if each.startswith(("INSERT", "UPDATE", "DELETE"))] == []


async def test_a_pooler_may_give_each_transaction_another_session_of_postgres(postgres: str) -> None:
    """In another session, the name of a prepared statement stands for another one, or for none."""
    store, prepared = await Store.open(postgres), text("SELECT count(*) FROM pg_prepared_statements")
    for number in range(10):
        store.begin_run(new_run(run=f"run-{number}", name=None))
        await store.renew_leases([f"run-{number}"])
        assert await store.get_run(f"run-{number}")
    written = await store.write_queue.execute(lambda connection: connection.execute(prepared).scalar_one())
    read = (await store._reader.execute(prepared)).scalar_one()
    assert (written, read) == (0, 0)
    await store.aclose()


async def test_only_the_first_claim_gets_the_run(store: Store, url: str) -> None:
    other = await Store.open(url)
    claims = await asyncio.gather(*(each.claim(new_run(run=f"run-{i}")) for i, each in enumerate((store, other) * 5)))
    assert sorted(claim.outcome for claim in claims) == ["elsewhere"] * 9 + ["new"]
    assert len({claim.id for claim in claims}) == 1
    assert (await other.claim(new_run(digest="another"))).outcome == "mismatch"
    await other.aclose()


async def test_a_run_of_a_dead_process_is_taken_over_with_its_finished_steps(store: Store, url: str) -> None:
    trace, events = await run_two_steps()
    await store.claim(new_run())
    record(store, events[:-1])
    await store.write_queue.flush()
    successors = [await Store.open(url, lease=-1.0), await Store.open(url, lease=-1.0)]
    claims = await asyncio.gather(*(successor.claim(new_run()) for successor in successors))
    resumed = [claim for claim in claims if claim.outcome == "resumed"]
    assert resumed
    assert resumed[0].rounds == trace.rounds
    for successor in successors:
        await successor.aclose()


async def test_renewing_a_lease_keeps_the_run(store: Store, url: str) -> None:
    await store.claim(new_run())
    successor = await Store.open(url, lease=60)
    for _ in range(4):
        await age(store, seconds=59)
        await store.renew_leases(["run-1"])
    assert (await successor.claim(new_run())).outcome == "elsewhere"
    await age(store, seconds=61)
    assert (await successor.claim(new_run())).outcome == "resumed"
    await successor.aclose()


async def age(store: Store, *, seconds: float) -> None:
    """Make all leases look as if they had been renewed earlier."""
    older = text("UPDATE runs SET heartbeat = heartbeat - :seconds")
    await store.write_queue.execute(lambda connection: connection.execute(older, {"seconds": seconds}))


@pytest.mark.parametrize("skew", [-86_400, 86_400])
async def test_a_wrong_clock_neither_takes_over_a_run_nor_loses_one(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    true_time = time.time
    await store.claim(new_run())
    patient = await Store.open(url, lease=60)
    monkeypatch.setattr(time, "time", lambda: true_time() + skew)
    skewed = await Store.open(url, lease=60)
    assert abs(skewed.now() - true_time()) < 10
    await skewed.claim(new_run("order-8", run="run-2"))
    await skewed.renew_leases(["run-2"])
    for opened, name, run in ((skewed, "order-7", "run-1"), (patient, "order-8", "run-2")):
        assert (await opened.claim(new_run(name, run=run))).outcome == "elsewhere"
        assert await opened.end_expired_runs([]) == []
    for opened in (skewed, patient):
        await opened.aclose()


async def test_a_slow_commit_does_not_set_the_time_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = store.write_queue.execute

    async def execute_slowly(write: Any, **options: Any) -> Any:
        result = await execute(write, **options)
        await asyncio.sleep(0.5)
        return result

    monkeypatch.setattr(store.write_queue, "execute", execute_slowly)
    expected = store.now() - time.monotonic()
    await store.renew_leases([])
    assert abs(store.now() - time.monotonic() - expected) < 0.4


async def test_a_process_that_lost_a_run_can_not_finish_it(store: Store, url: str) -> None:
    trace, _ = await run_two_steps()
    await store.claim(new_run())
    successor = await Store.open(url, lease=-1.0)
    await successor.claim(new_run())
    store.finish_run("run-1", trace, "done", charged=CHARGED)
    await store.write_queue.flush()
    assert await successor.get_trace("run-1") is None
    await successor.aclose()


async def test_a_process_that_lost_a_run_can_not_change_it(store: Store, url: str) -> None:
    trace, events = await run_two_steps()
    await store.claim(new_run())
    successor = await Store.open(url, lease=-1.0)
    await successor.claim(new_run())
    record(successor, events[:-1])
    await successor.write_queue.flush()
    for event in events:
        if isinstance(event, StepFinished):
            store.save_progress("run-1", event.model_copy(update={"round": 1}), Usage(calls=99), CHARGED)
    store.finish_run("run-1", trace, "failed", charged=CHARGED)
    await store.write_queue.flush()
    row = await successor.get_run("run-1")
    assert row is not None
    assert (row.status, row.usage.calls) == ("running", 1)
    assert await successor.get_rounds("run-1") == trace.rounds
    assert [line async for line in successor.audit_lines(Chain()) if '"run-1"' in line] == []
    await successor.aclose()


async def test_a_finished_run_is_read_back_unchanged(store: Store) -> None:
    trace, events = await run_two_steps()
    await store.claim(new_run())
    record(store, events)
    store.finish_run("run-1", trace, "done", charged=CHARGED)
    await store.write_queue.flush()
    claim = await store.claim(new_run())
    assert claim.outcome == "done"
    assert await store.get_trace("run-1", key="red") == trace
    assert await store.get_trace("run-1", key="blue") is None
    (row,) = await store.list_runs(Search(key="red"))
    assert (row.status, row.usage.cost, row.usage.calls) == ("done", Decimal("0.02"), 3)
    assert row.labels == {"a": "b"}
    assert (await usage_of_key(store, "red")).cost == Decimal("0.02")
    assert (await usage_of_key(store, "red", since=time.time() + 9)).cost == 0
    assert (await store.read_budget(BUDGET)).charged_elsewhere == CHARGED


async def test_a_claim_of_an_answered_request_does_not_read_its_trace_while_other_writes_wait(store: Store) -> None:
    trace, _ = await run_two_steps()
    await store.claim(new_run())
    store.finish_run("run-1", trace, "done", charged=CHARGED)
    unreadable = text("UPDATE runs SET trace = 'unreadable'")
    await store.write_queue.execute(lambda connection: connection.execute(unreadable))
    assert (await store.claim(new_run())).outcome == "done"


async def test_a_failed_run_is_resumed_from_its_trace(store: Store) -> None:
    trace, _ = await run_two_steps()
    await store.claim(new_run())
    store.finish_run("run-1", trace, "failed", charged=CHARGED)
    await store.write_queue.flush()
    claim = await store.claim(new_run())
    assert (claim.outcome, claim.rounds, claim.charged) == ("resumed", trace.rounds, CHARGED)


async def test_a_run_stored_by_an_incompatible_release_raises_an_error_that_says_so(store: Store) -> None:
    trace, events = await run_two_steps()
    await store.claim(new_run())
    store.finish_run("run-1", trace, "failed", charged=CHARGED)
    store.begin_run(new_run("order-8", run="run-2"))
    store.save_progress(
        "run-2", next(event for event in events if isinstance(event, WorkflowPlanned)), Usage(), CHARGED
    )
    store.write_queue.add(
        lambda connection: connection.execute(text("UPDATE runs SET trace = replace(trace, 'source', 'origin')"))
    )
    store.write_queue.add(
        lambda connection: connection.execute(text("UPDATE steps SET body = replace(body, 'source', 'origin')"))
    )
    for read in (store.get_trace("run-1"), store.claim(new_run()), store.get_rounds("run-2")):
        with pytest.raises(ConfigError, match=r"'run-.' was stored by another release .*source: missing"):
            await read


async def test_pruning_deletes_finished_runs_but_not_running_ones(store: Store) -> None:
    trace, events = await run_two_steps()
    await store.claim(new_run())
    record(store, events[:-1])
    await store.claim(new_run("order-8", run="run-2"))
    store.finish_run("run-2", trace, "done", charged=CHARGED)
    await store.write_queue.flush()
    assert await store.prune(before=time.time() - 60) == 0
    assert await store.prune(before=time.time()) >= 1
    assert await store.get_run("run-2") is None


async def test_pruning_leaves_room_for_other_writes_between_its_transactions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "DELETE_BATCH_SIZE", 2)
    monkeypatch.setattr("rl_conductor_server.store.responses.conversations.DELETE_BATCH_SIZE", 2)
    items = [NewItem(line=line, custom_id=str(line), body="{}") for line in range(5)]
    batch = StoredBatch(id="batch_1", key="red", endpoint="/", input_file="file-1", created=1, expires=2, ended=3)
    await store.batches.add(batch, items, BatchLimits(9, 9, 999))
    conversation = Conversation(id="conv_1", key="red", created=1)
    await store.conversations.create(conversation, [{"id": f"msg_{number}"} for number in range(5)])
    for number in range(5):
        run = f"run-{number}"
        response = StoredResponse(run=run, key="red", created=1, parameters="{}")
        store.responses.add(response, StoredTurn(run=run, input="[]"))
    deleted: list[int] = []
    execute = store.write_queue.execute

    async def count_deleted(write: Any, **options: Any) -> Any:
        result = await execute(write, **options)
        deleted.extend([result] if isinstance(result, int) else [])
        return result

    monkeypatch.setattr(store.write_queue, "execute", count_deleted)
    await store.prune(before=time.time() + 60)
    assert deleted == [2, 2, 1, 0, 2, 2, 1, 1, 0, 2, 2, 1, 1, 0, 0, 0]
    assert await store.batches.get("batch_1", key="red") is None
    assert await store.conversations.get("conv_1", key="red") is None


async def test_the_usage_of_deleted_runs_still_counts(store: Store, url: str) -> None:
    trace, _ = await run_two_steps()
    other = await Store.open(url)
    today = time.time() // 86_400 * 86_400
    for number, owner in enumerate((store, other, other)):
        owner.begin_run(new_run(None, run=f"run-{number}").model_copy(update={"created": today + 1}))
        owner.finish_run(f"run-{number}", trace, "done", charged=CHARGED)
        await owner.write_queue.flush()
        assert await other.prune(before=time.time() + 1e5) == 1
    assert (await usage_of_key(store, "red", since=today)).cost == 3 * trace.usage.cost
    for start in (0, int(today)):
        period = replace(BUDGET, start=start)
        assert (await store.read_budget(period)).charged_elsewhere == CHARGED + CHARGED + CHARGED
    assert (await usage_of_key(store, "red", since=today + 86_400)).calls == 0
    assert (await usage_of_key(store, "blue")).calls == 0
    await other.aclose()


async def test_runs_without_an_idempotency_key_are_separate(store: Store) -> None:
    for number in range(2):
        store.begin_run(new_run(None, run=f"run-{number}"))
    await store.write_queue.flush()
    assert {row.id for row in await store.list_runs()} == {"run-0", "run-1"}
    assert len(await store.list_runs(limit=1)) == 1
    assert await store.list_runs(Search(before=0)) == []


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
async def test_each_search_field_filters_runs(store: Store, search: dict[str, Any], *, found: bool) -> None:
    trace, _ = await run_two_steps()
    store.begin_run(new_run(None))
    store.finish_run("run-1", trace, "done", charged=CHARGED)
    await store.write_queue.flush()
    assert [row.id for row in await store.list_runs(Search(**search))] == ["run-1"] * found


async def test_a_search_by_model_name_finds_all_its_releases(store: Store) -> None:
    for number, model in enumerate(("mini-2026-11-21", "mini-2027-01-01", "mini-house-2026-11-21")):
        store.begin_run(new_run(None, run=f"run-{number}").model_copy(update={"model": model}))
    await store.write_queue.flush()
    assert {row.id for row in await store.list_runs(Search(model="mini"))} == {"run-0", "run-1"}
    assert [row.id for row in await store.list_runs(Search(model="mini-2027-01-01"))] == ["run-1"]


async def test_spending_is_grouped_by_worker_model_or_key(store: Store) -> None:
    trace, _ = await run_two_steps()
    for number in range(2):
        store.begin_run(new_run(None, run=f"run-{number}"))
        store.finish_run(f"run-{number}", trace, "done", charged=CHARGED)
    await store.write_queue.flush()
    now = time.time()
    spending = {
        group_by: await store.spending.list_usage(group_by, since=now - 60, before=now + 60, width=10**9)
        for group_by in get_args(SpendingGroup)
    }
    cents = {
        group_by: {row.name: (row.usage.calls, int(row.usage.cost * 100)) for row in rows}
        for group_by, rows in spending.items()
    }
    assert cents == {"worker": {"": (2, 0), "a": (2, 2), "b": (2, 2)}, "model": {"m": (6, 4)}, "key": {"red": (6, 4)}}
    assert {row.start for rows in spending.values() for row in rows} == {10**9}
    assert await store.spending.list_usage("worker", since=0, before=now - 60, width=60) == []
    assert await store.list_workers() == ["", "a", "b"]


async def test_a_run_that_finishes_twice_counts_its_worker_usage_once(store: Store) -> None:
    trace, _ = await run_two_steps()
    await store.claim(new_run())
    store.finish_run("run-1", trace, "failed", charged=CHARGED)
    store.finish_run("run-1", trace, "done", charged=CHARGED)
    await store.write_queue.flush()
    spending = await store.spending.list_usage("worker", since=0, before=9e9, width=10**9)
    assert sum(row.usage.calls for row in spending) == 3


async def test_a_browser_session_is_valid_until_it_expires(store: Store) -> None:
    await store.sign_ins.add("old", seconds=-1)
    await store.sign_ins.add("new", seconds=60)
    assert [await store.sign_ins.is_valid([name]) for name in ("old", "new", "other")] == [False, True, False]
    await store.prune(before=0)
    await store.sign_ins.delete(["new"])
    assert not await store.sign_ins.is_valid(["new"])


TEXT_INDEX = re.compile(r"(un)?indexed_runs|run_trigrams|runs_by_text")
"""Names of tables that only SQLite has, and of an index that only Postgres has."""


async def test_the_migrations_create_the_tables_that_the_code_defines(url: str) -> None:
    engine = await open_database(url)

    def compare(connection: Connection) -> list[object]:
        options = {"include_name": lambda name, *_: not TEXT_INDEX.match(name or "")}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))

    async with engine.connect() as connection:
        difference = await connection.run_sync(compare)
    await engine.dispose()
    assert difference == []


OPEN = """
import asyncio
from rl_conductor_server.store import Store

async def main():
    store = await Store.open(url)
    await store.ping()
    await store.aclose()

asyncio.run(main())
"""


def test_processes_that_start_together_do_not_all_migrate(tmp_path: Path) -> None:
    names = {"url": f"sqlite:///{tmp_path / 'fresh.db'}"}
    processes = [start_fork(exec, OPEN, names, environment=os.environ) for _ in range(3)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]


async def test_reads_see_all_earlier_writes(store: Store) -> None:
    trace, events = await run_two_steps()
    store.begin_run(new_run(None))
    record(store, events)
    assert await store.get_rounds("run-1") == trace.rounds
    store.finish_run("run-1", trace, "done", charged=CHARGED)
    assert await store.get_trace("run-1") == trace
    assert await store.get_rounds("run-1") == ()


async def test_a_rejected_write_is_logged_and_later_writes_succeed(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        invalid = text("INSERT INTO sign_ins (digest) VALUES (NULL)")
        store.write_queue.add(lambda connection: connection.execute(invalid))
        await store.write_queue.flush()
    store.begin_run(new_run(None))
    await store.write_queue.flush()
    assert "1 write to the store is lost" in caplog.text
    assert len(await store.list_runs()) == 1


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://root:secret@localhost/x", "write sqlite:///FILE or postgres://"),
        ("nonsense", "the store URL nonsense is not valid"),
        ("sqlite:////no/such/folder/x.db", "can't open the store"),
        ("postgres://me:secret@127.0.0.1:1/x", "can't open the store"),
        ("postgres://127.0.0.1:1/x?user=me&password=secret", "can't open the store"),
    ],
)
async def test_the_error_for_a_store_that_can_not_be_opened_hides_the_password(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        await Store.open(url)
    assert "secret" not in str(caught.value)


async def test_a_store_whose_schema_is_not_only_added_to_is_not_opened(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    await (await Store.open(url)).aclose()
    engine = await open_database(url)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '2-0001'"))
    await engine.dispose()
    with pytest.raises(ConfigError, match="was created by a newer release"):
        await Store.open(url)


async def test_a_new_sqlite_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    store = await Store.open(url)
    store.begin_run(new_run(None))
    await store.write_queue.flush()
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}  # noqa: ASYNC240
    await store.aclose()
