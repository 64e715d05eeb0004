"""Spending by worker, model or key, which reads the stored sums of days that have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, get_args

from sqlalchemy import delete, select

from core.runs import SOON, pool_of
from rl_conductor.calls.budget import Amount
from rl_conductor.conductor import Conductor
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Price
from rl_conductor_server.store import NewRun, Spending, Store
from rl_conductor_server.store.models import SpendingGroup
from rl_conductor_server.store.tables import DAY, daily_usage, runs, summed_days
from rl_conductor_server.store.usage.daily_usage import mark_day, store_day
from server.conftest import ONE_STEP, Serve

TODAY = 30
NOW = TODAY * DAY + 3_600.0
CENT = Price(input=0, output=0, per_call=Decimal("0.01"))


async def trace_of(worker: str) -> Trace:
    """Returns the trace of a run of one step, whose planning is free and whose call costs a cent."""
    return await Conductor(ScriptedModel(ONE_STEP), pool_of(**{worker: ScriptedModel("x", price=CENT)})).run("?")


def write_run(store: Store, run: str, trace: Trace, *, day: float, **fields: Any) -> None:
    values = {"id": run, "key": "red", "api": "chat", "model": "m", "created": day * DAY}
    store.begin_run(NewRun.model_validate(values | fields))
    store.finish_run(run, trace, "done", charged=Amount())


async def write_days(store: Store) -> None:
    """Writes runs of two workers, keys and models on every other day, two of them early and late on it."""
    traces = [await trace_of(worker) for worker in "ab"]
    for day in range(0, TODAY + 1, 2):
        for number, part in enumerate((0.0, 1 - 0.4 / DAY)):
            kind = (day // 2 + number) % 2
            fields = {"key": ("red", "blue")[kind], "model": f"m-{kind}"}
            write_run(store, f"run-{day}-{number}", traces[kind], day=day + part, **fields)
    await store.write_queue.flush()


async def all_spending(store: Store, since: float, before: float, width: int = DAY) -> list[Sequence[Spending]]:
    times: dict[str, Any] = {"since": since, "before": before, "width": width}
    return [await store.spending.list_usage(group, **times) for group in get_args(SpendingGroup)]


async def summed(store: Store) -> list[int]:
    """Returns the days whose sums are stored."""
    query = select(summed_days.c.day).where(summed_days.c.mark.is_(None)).order_by(summed_days.c.day)
    return list((await store.spending._reader.execute(query)).scalars())


WINDOWS: list[tuple[float, float, int]] = [
    (0, NOW, DAY),
    (0, NOW, 7 * DAY),
    (3.5 * DAY, 9.2 * DAY, DAY),
    (4 * DAY, 5 * DAY, DAY),
    (4.1 * DAY, 4.2 * DAY, DAY),
    (0, NOW, 3_600),
    (NOW, NOW + DAY, DAY),
]
"""Start, end and width of what is asked for."""


async def test_spending_is_the_same_before_and_after_days_are_added_up(store: Store) -> None:
    async def spending() -> dict[tuple[float, float, int], list[Sequence[Spending]]]:
        return {window: await all_spending(store, *window) for window in WINDOWS}

    await write_days(store)
    expected = await spending()
    assert await store.spending.sum_days(now=NOW) == TODAY - 1
    assert await store.spending.sum_days(now=NOW) == 0
    assert await summed(store) == list(range(TODAY - 1))
    assert await spending() == expected


async def test_spending_reads_no_run_of_a_day_that_is_added_up(store: Store) -> None:
    await write_days(store)
    expected = await all_spending(store, since=0, before=NOW)
    await store.spending.sum_days(now=NOW)
    await store.write_queue.execute(
        lambda connection: connection.execute(delete(runs).where(runs.c.created < (TODAY - 1) * DAY))
    )
    assert await all_spending(store, since=0, before=NOW) == expected


async def test_a_change_of_an_old_run_deletes_the_sums_of_its_day(store: Store) -> None:
    await write_days(store)
    await store.spending.sum_days(now=NOW)
    store.finish_run("run-4-0", await trace_of("c"), "done", charged=Amount())
    write_run(store, "late", await trace_of("a"), day=7.5)
    await store.write_queue.flush()
    assert set(range(TODAY - 1)) - set(await summed(store)) == {4, 7}
    changed = await all_spending(store, since=0, before=NOW)
    assert [row.usage.cost for row in changed[0] if row.name == "c"] == [Decimal("0.01")]
    assert await store.spending.sum_days(now=NOW) == 2
    assert await all_spending(store, since=0, before=NOW) == changed


async def test_sums_are_dropped_if_a_run_of_the_day_changes_while_they_are_read(store: Store) -> None:
    await write_days(store)

    async def mark(name: str) -> None:
        await store.write_queue.execute(lambda connection: mark_day(connection, 4, name))

    async def store_sums(name: str) -> list[int]:
        await store.write_queue.execute(lambda connection: store_day(connection, 4, name, []))
        return await summed(store)

    await mark("first")
    assert await summed(store) == []
    write_run(store, "late", await trace_of("a"), day=4.5)
    assert await store_sums("first") == []
    await mark("second")
    assert await store_sums("first") == [], "another process may be slower"
    assert await store_sums("second") == [4]
    assert await store_sums("first") == [4]


async def test_pruned_runs_are_in_no_sum(store: Store) -> None:
    await write_days(store)
    await store.spending.sum_days(now=NOW)
    assert await store.prune(before=4.5 * DAY) == 5
    assert (await summed(store))[0] == 5
    left = await all_spending(store, since=0, before=NOW)
    assert {row.start for row in left[0]} == {day * DAY for day in range(4, TODAY + 1, 2)}
    assert await store.spending.sum_days(now=NOW) == 1
    assert await all_spending(store, since=0, before=NOW) == left
    assert await store.prune(before=TODAY * DAY * 2) == 27
    assert await all_spending(store, since=0, before=NOW) == [[], [], []]
    rows = (await store.spending._reader.execute(select(daily_usage))).all()
    assert rows == []
    assert await store.spending.sum_days(now=NOW) == 0


async def test_a_server_adds_up_the_days_that_have_ended(serve: Serve, url: str) -> None:
    store = await Store.open(url)
    today = time.time() // DAY
    for ago in range(4):
        write_run(store, f"run-{ago}", await trace_of("a"), day=today - ago)
    await store.aclose()
    at = await serve(store={"url": url, "retain_days": 90})
    async with asyncio.timeout(SOON):
        while await summed(at.service.store) != [today - 3, today - 2]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
