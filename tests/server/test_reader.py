"""Tests of queries whose caller is cancelled: no connection may be left to the garbage collector."""

from __future__ import annotations

import asyncio

from rl_conductor_server.store import Store


async def cancel_insistently(store: Store, turns: int) -> bool:
    """Reads for so many turns of the event loop, then cancels in each turn, as AnyIO does when a client leaves."""
    reading = asyncio.create_task(store.get_run("run-1"))
    for _ in range(turns):
        await asyncio.sleep(0)
    while not reading.done():
        reading.cancel()
        await asyncio.sleep(0)
    return reading.cancelled()


async def test_a_cancelled_query_closes_its_connection(url: str) -> None:
    store = await Store.open(url)
    before = asyncio.all_tasks()
    cancelled = [await cancel_insistently(store, turns) for turns in range(0, 90, 3)]
    cancelled += await asyncio.gather(*(cancel_insistently(store, turns) for turns in range(12)))
    await store.aclose()
    assert sum(cancelled) >= 8  # the others had ended before
    assert asyncio.all_tasks() == before
