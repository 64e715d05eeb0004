"""Budgets of keys are hard caps: across processes, crashes and outages of the store."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, func, select, update

from core.runs import SOON, Gated
from rl_conductor.calls.budget import Amount, Reservation
from rl_conductor.errors import LimitError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Price, Sampling, Usage
from rl_conductor.workflow.request_tokens import UpperBound
from rl_conductor_server.auth.budgets import KeyBudget
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.auth.leased_budget import LeasedBudget
from rl_conductor_server.errors import ApiError
from rl_conductor_server.runs.budgets import RunBudget
from rl_conductor_server.settings import BudgetEntry
from rl_conductor_server.store import BudgetPeriod, BudgetState, NewRun, Store, StoreUnavailableError, write_behind
from rl_conductor_server.store.audit import Chain, Record, parse_record
from rl_conductor_server.store.tables import DAY, budget_leases, runs
from server.chat_requests import gate
from server.conftest import ONE_STEP, Serve, until

BODY: Any = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}
CENT = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))


@dataclass
class Process:
    """One of several processes that spend the budget of a key."""

    store: Store
    key: KeyBudget
    spent: Amount = field(default_factory=Amount)
    """The amount that vendors billed."""
    run: str = field(default_factory=lambda: f"run-{secrets.token_hex(8)}")

    async def budget(self) -> RunBudget:
        """Begin a run and return its budget."""
        run, now = f"run-{secrets.token_hex(8)}", self.store.now()
        key_budget = await self.key.current(now)
        self.run = run
        self.store.begin_run(NewRun(id=run, key=self.key.name, api="chat", model="m", created=now))
        return RunBudget(key_budget, on_reserved=partial(self.store.save_reservation, run))

    @asynccontextmanager
    async def call(self, bound: str, cost: str | None = None) -> AsyncGenerator[Reservation, None]:
        """Make a call that may cost `bound`; it costs `cost`, or unknown if the block fails."""
        budget = await self.budget()
        run, upper_bound = self.run, UpperBound(1, 0, Decimal(bound))
        async with budget.reserve("m", upper_bound) as reservation:
            reservation.begin()
            yield reservation
            reservation.commit(Usage(calls=1, input_tokens=1, cost=Decimal(cost or bound)))
        self.spent += budget.spent
        self.store.save_reservation(run, budget.spent, budget.reserved)
        self.store.abandon_run(run)

    async def spend(self, bound: str, cost: str | None = None) -> str:
        """Make a call and return its outcome."""
        try:
            async with self.call(bound, cost):
                await asyncio.sleep(0)
        except (LimitError, ApiError):
            return "refused"
        return "made"


Start = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start(url: str) -> AsyncGenerator[Start, None]:
    """Starts processes that share the budget of one key, by default of one dollar."""
    key = secrets.token_hex(8)
    async with AsyncExitStack() as stack:

        async def start(*, lease: float = 60.0, **limits: Any) -> Process:
            store = await Store.open(url, lease=lease)
            stack.push_async_callback(store.aclose)
            entry = BudgetEntry.model_validate({"usd": "1", "per": "ever"} | limits)
            return Process(store, KeyBudget(key, entry, store))

        yield start


async def make_calls(processes: Sequence[Process], number: int, bound: str, cost: str | None = None) -> Counter[str]:
    """Make `number` calls at once, while all processes keep up their shares as servers do."""

    async def keep_up() -> None:
        while True:
            for process in processes:
                process.key.return_unused()
            await asyncio.sleep(0.05)

    upkeep = asyncio.create_task(keep_up())
    async with asyncio.timeout(SOON):
        calls = (processes[index % len(processes)].spend(bound, cost) for index in range(number))
        outcomes = Counter(await asyncio.gather(*calls))
    upkeep.cancel()
    await asyncio.gather(upkeep, return_exceptions=True)
    return outcomes


@pytest.mark.parametrize("limits", [{"usd": "0.50"}, {"usd": None, "tokens": 50}], ids=str)
async def test_three_processes_and_200_requests_at_once_spend_the_budget_and_no_more(
    start: Start, limits: dict[str, Any]
) -> None:
    processes = [await start(**limits) for _ in range(3)]
    outcomes = await make_calls(processes, 200, "0.01")
    assert sum(process.spent.calls for process in processes) == outcomes["made"] == 50
    await asyncio.gather(*(process.store.write_queue.flush() for process in processes))
    state = await processes[0].store.read_budget(BudgetPeriod(processes[0].key.name, 0, None, None))
    assert (state.charged_here + state.charged_elsewhere).usd == Decimal("0.50")


async def test_calls_that_cost_less_than_reserved_leave_the_rest_to_other_processes(start: Start) -> None:
    processes = [await start() for _ in range(3)]
    assert await make_calls(processes, 30, "0.30", "0.01") == {"made": 30}


async def test_a_call_waits_while_another_process_has_the_rest_of_the_budget(start: Start) -> None:
    here, there = await start(), await start()
    async with there.call("0.80", "0.10"):
        waiting = asyncio.create_task(here.spend("0.50"))
        await until(lambda: bool(here.store.write_queue._task and here.store.write_queue._task.done()))
        assert not waiting.done()
    there.key.return_unused()
    assert await asyncio.wait_for(waiting, SOON) == "made"


async def test_a_call_that_others_spending_leaves_no_room_for_is_refused_with_what_remains(start: Start) -> None:
    here, there = await start(), await start()
    await there.spend("0.70")
    await there.store.write_queue.flush()
    with pytest.raises(LimitError) as refused:
        async with here.call("0.50"):
            pass
    assert (refused.value.limit, refused.value.remaining) == ("usd", Decimal("0.3"))
    await here.spend("0.30")
    await here.store.write_queue.flush()
    for process in (here, there):
        process.key.return_unused()
        with pytest.raises(ApiError, match=r"budget of \$1 .* is used up"):
            await process.key.current(process.store.now())


async def test_the_budgets_of_idle_keys_are_not_read(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = await start(), await start()
    await here.spend("0.10")
    reads: list[BudgetPeriod] = []
    read = here.store.read_budget

    async def read_and_count(period: BudgetPeriod) -> BudgetState:
        reads.append(period)
        return await read(period)

    monkeypatch.setattr(here.store, "read_budget", read_and_count)
    for _ in range(3):
        here.key.return_unused()
    assert reads == []
    await here.store.write_queue.flush()
    assert await there.spend("0.90") == "made"
    await there.store.write_queue.flush()
    for _ in range(2):
        with pytest.raises(ApiError, match=r"budget of \$1 .* is used up"):
            await here.key.current(here.store.now())
    assert len(reads) == 1


async def test_budgets_of_past_periods_are_dropped_when_they_have_no_call_in_flight(start: Start) -> None:
    here = await start(per="day")
    now = here.store.now()
    for days in range(30):
        await here.key.current(now - days * DAY)
    yesterday = RunBudget(await here.key.current(now - DAY), on_reserved=lambda *_: None)
    async with yesterday.reserve("m", UpperBound(1, 0, Decimal("0.60"))) as reservation:
        reservation.begin()
        here.key.return_unused()
        assert len(here.key._budgets) == 2
    here.key.return_unused()
    assert len(here.key._budgets) == 1
    with pytest.raises(LimitError):  # the run goes on, and its budget still counts
        async with yesterday.reserve("m", UpperBound(1, 0, Decimal("0.60"))):
            pass


async def test_an_idle_process_returns_its_share(start: Start) -> None:
    here, there = await start(), await start()
    async with there.call("0.20", "0.01"), there.call("0.20", "0.01"), there.call("0.20", "0.01"):
        pass
    there.key.return_unused()
    await there.store.write_queue.flush()
    assert await here.spend("0.97") == "made"


async def test_a_process_that_stops_returns_its_share(start: Start) -> None:
    here, there = await start(), await start()
    async with there.call("0.30", "0.01"), there.call("0.30", "0.01"):
        pass
    there.key.close()
    there.store.write_queue.add(there.store._budgets.close)
    await there.store.write_queue.flush()
    assert await count_shares(here) == 0
    assert await here.spend("0.98") == "made"


async def count_shares(process: Process) -> int:
    def count(connection: Connection) -> int:
        query = select(func.count()).where(budget_leases.c.key == process.key.name)
        return connection.execute(query).scalar_one()

    return await process.store.write_queue.execute(count)


async def crash(process: Process) -> None:
    """Let the leases of a process expire; what it had queued until now is stored."""

    def expire(connection: Connection) -> None:
        for table in (budget_leases, runs):
            connection.execute(update(table).where(table.c.owner == process.store.owner).values(heartbeat=0))

    await process.store.write_queue.execute(expire)


async def test_a_crash_charges_the_calls_in_flight_as_an_upper_bound_and_nothing_else(start: Start) -> None:
    here, there = await start(), await start()
    assert await there.spend("0.40", "0.05") == "made"
    there.key.return_unused()
    call = there.call("0.30")
    await call.__aenter__()
    run = there.run
    await crash(there)
    await asyncio.gather(*(here.store.end_expired_runs([]) for _ in range(3)))
    (record,) = [record for record in await audit(here.store) if record.run == run]
    assert record.in_flight is not None
    assert (record.status, record.used.usd, record.in_flight.usd) == ("failed", Decimal(0), Decimal("0.3"))
    assert await here.spend("0.66") == "refused"
    assert await here.spend("0.65") == "made"
    await call.__aexit__(None, None, None)


async def test_the_spending_of_a_key_has_the_share_of_a_crashed_process(start: Start) -> None:
    here, there = await start(), await start()
    name = here.key.name
    call = there.call("0.30")
    await call.__aenter__()
    assert (await here.store.spending.read_keys([name], start=0))[name].charged == Amount()
    await crash(there)
    charged = (await here.store.spending.read_keys([name], start=0))[name].charged
    state = await here.store.read_budget(BudgetPeriod(name, 0, Decimal(1), None))
    assert charged == state.charged_here + state.charged_elsewhere
    assert charged.usd >= Decimal("0.30")
    await call.__aexit__(None, None, None)


async def test_the_spending_of_more_keys_is_read_than_one_query_may_name(start: Start) -> None:
    here = await start()
    assert await here.spend("0.30") == "made"
    names = [*(f"key-{number}" for number in range(33_000)), here.key.name]
    spending = await here.store.spending.read_keys(names, start=0)
    assert list(spending) == names
    assert spending[here.key.name].charged.usd == Decimal("0.3")
    assert spending["key-7"].charged == Amount()


async def test_a_resumed_run_is_charged_once_for_the_calls_of_the_crashed_process(start: Start) -> None:
    here, there = await start(), await start()
    new = NewRun(id="", key=there.key.name, idempotency_key=secrets.token_hex(8), api="chat", model="m", created=0)
    new = new.model_copy(update={"id": f"run-{secrets.token_hex(8)}", "created": there.store.now()})
    await there.store.claim(new)
    there.store.save_reservation(new.id, Amount(usd=Decimal("0.1")), Amount(usd=Decimal("0.2")))
    await crash(there)
    claim = await here.store.claim(new.model_copy(update={"id": f"run-{secrets.token_hex(8)}"}))
    assert (claim.outcome, claim.charged.usd) == ("resumed", Decimal("0.3"))
    assert [
        record.in_flight.usd for record in await audit(here.store) if record.run == new.id and record.in_flight
    ] == [Decimal("0.2")]
    here.store.save_reservation(new.id, claim.charged + Amount(usd=Decimal("0.1")), Amount())
    await here.store.write_queue.flush()
    assert await here.spend("0.61") == "refused"
    assert await here.spend("0.60") == "made"


async def audit(store: Store) -> list[Record]:
    chain = Chain()
    parsed = [parse_record(line) async for line in store.audit_lines(chain)]
    records = [record for record in parsed if isinstance(record, Record)]
    assert chain.broken is None
    return records


async def test_a_run_that_is_resumed_the_next_day_spends_the_budget_of_that_day(serve: Serve) -> None:
    opened, wait = gate()
    a = Gated("late", wait, price=CENT)
    at = await serve({"a": a}, keys={"red": {"sha256": hash_key("key-of-red"), "usd": "0.03", "per": "day"}})
    client, headers = at.openai("key-of-red"), {"authorization": "Bearer key-of-red"}
    question: Any = {"model": BODY["model"], "input": "Say it.", "background": True}
    first = await client.responses.create(**question, extra_headers={"idempotency-key": "one"})
    await asyncio.wait_for(a.asked.wait(), SOON)
    await client.responses.cancel(first.id)
    await at.service.store.write_queue.flush()
    with closing(sqlite3.connect(at.service.settings.store.url.removeprefix("sqlite:///"))) as database, database:
        database.execute("UPDATE runs SET created = created - 86400, charged_usd = 0")
    opened.set()
    await client.responses.create(**question, extra_headers={"idempotency-key": "one"})
    await until(lambda: not list(at.service.runs.active_ids))
    while (await at.http.post("/v1/chat/completions", json=BODY, headers=headers)).is_success:
        pass
    assert len(a.requests) == 3


async def test_a_process_that_was_only_cut_off_does_not_exceed_the_budget_when_it_returns(start: Start) -> None:
    here, there = await start(), await start()
    async with there.call("0.60"):
        await crash(there)
        await here.store.end_expired_runs([])
        assert await here.spend("0.50") == "refused"
    assert await there.spend("0.41") == "refused"
    assert await there.spend("0.40") == "made"


async def test_a_worker_that_runs_in_a_thread_of_its_own_shares_the_budget(start: Start) -> None:
    process = await start()
    budget = await process.budget()

    async def call() -> None:
        async with budget.reserve("m", UpperBound(1, 0, Decimal("0.4"))) as reservation:
            reservation.begin()

    await asyncio.to_thread(asyncio.run, call())
    await asyncio.to_thread(asyncio.run, call())
    with pytest.raises(LimitError):
        await asyncio.to_thread(asyncio.run, call())
    assert budget.spent.usd == Decimal("0.8")


async def test_few_calls_of_a_busy_process_wait_for_the_store(start: Start) -> None:
    process = await start(usd="1000")
    budget = await process.key.current(process.store.now())
    assert isinstance(budget, LeasedBudget)
    extensions = 0
    extend = process.store.extend_budget

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal extensions
        extensions += 1
        return await extend(*args, **options)

    process.store.extend_budget = counted  # type: ignore[method-assign]
    assert await make_calls([process], 400, "0.01") == {"made": 400}
    assert extensions <= 40


# --------------------------------------------------------------------------------------- heartbeats


async def test_heartbeats_never_deadlock_with_the_writers_of_other_processes(postgres: str) -> None:
    stores = [await Store.open(postgres, lease=60) for _ in range(3)]
    run_ids = {store: [f"run-{secrets.token_hex(8)}" for _ in range(60)] for store in stores}
    before = await asyncio.to_thread(deadlocks, postgres)

    async def work(store: Store) -> None:
        for run in run_ids[store]:
            store.begin_run(NewRun(id=run, key="deadlock", api="chat", model="m", created=store.now()))
        for number in range(15):
            shuffled = sorted(run_ids[store], key=lambda run: hash((run, number)))
            for run in shuffled:
                store.save_reservation(run, Amount(tokens=number), Amount(tokens=1))
            await asyncio.gather(store.renew_leases(reversed(shuffled)), store.end_expired_runs(shuffled))

    await asyncio.gather(*(work(store) for store in stores))
    for store in stores:
        await store.aclose()
    assert await asyncio.to_thread(deadlocks, postgres) == before


def deadlocks(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT sum(deadlocks) FROM pg_stat_database").fetchone()
    assert row is not None
    return int(row[0])


async def test_after_an_outage_other_processes_can_renew_their_leases_before_their_runs_end(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = await Store.open(url, lease=0.2), await Store.open(url, lease=0.2)
    new = NewRun(id=f"run-{secrets.token_hex(8)}", key="outage", api="chat", model="m", created=there.now())
    there.begin_run(new)
    await there.renew_leases([new.id])
    await here.renew_leases([])
    await asyncio.sleep(0.3)  # the store is away for longer than a lease
    await here.renew_leases([])
    assert await here.end_expired_runs([]) == []
    await there.renew_leases([new.id])
    await asyncio.sleep(0.25)
    assert new.id in await here.end_expired_runs([])
    for store in (here, there):
        await store.aclose()


# --------------------------------------------------------------------------------------- the store is away


def one_worker(model: Any = "said") -> WorkerPool:
    worker = model if isinstance(model, ScriptedModel) else ScriptedModel(model, price=CENT)
    return WorkerPool([Worker.of("a", worker, sampling=Sampling(max_tokens=1))])


async def test_without_the_store_a_budgeted_key_is_refused_before_a_model_is_called(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ScriptedModel("said", price=CENT)
    keys = {"red": {"sha256": hash_key("key-of-red"), "usd": "5"}}
    at = await serve(one_worker(worker), ScriptedModel(ONE_STEP, price=CENT), keys=keys)
    headers = {"authorization": "Bearer key-of-red"}
    assert (await at.http.post("/v1/chat/completions", json=BODY, headers=headers)).status_code == 200
    await at.service.store.write_queue.flush()
    for budget in at.service.keys:
        budget.return_unused()
    await at.service.store.write_queue.flush()
    calls = len(worker.requests)
    locked = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    locked.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(write_behind, "COMMIT_TIMEOUT", 0.2)
    refused = await at.http.post("/v1/chat/completions", json=BODY, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_away")
    assert refused.headers["retry-after"] == "5"
    assert len(worker.requests) == calls
    locked.execute("ROLLBACK")
    locked.close()
    monkeypatch.setattr(write_behind, "COMMIT_TIMEOUT", SOON)
    assert (await at.http.post("/v1/chat/completions", json=BODY, headers=headers)).status_code == 200


async def test_while_the_store_is_away_for_long_nobody_waits_for_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await Store.open(url)
    monkeypatch.setattr(write_behind.WriteBehindQueue, "lag", 60.0)
    with pytest.raises(StoreUnavailableError, match="not answered for 60 s"):
        await store.write_queue.execute(lambda _: None)
    monkeypatch.undo()
    await store.aclose()
